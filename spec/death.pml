/*
 * Death by judgement: heartbeats, self-fence H, drain D, takeover W, hold and resume, on clocks that drift.
 *
 * Two sessions, one judge. Session 0 owns the connection at epoch 1. Any of them may stop for any time (nobody is ever
 * obliged to act, so a pause and an unsupervised crash are runs in which a process takes no step while ticks go by). Any
 * attempt of a write may land late, or land and lose its answer; heartbeats, claims, declares and releases have no bound
 * on how late. A record lands before its sender's deadline + D.
 *
 * Checked: invariant 1 at every landing, and what the timer-free models build on: a judge's DEAD only ever lands on a
 * session that can emit no more and has nothing in flight (`drained`).
 *
 * Clocks: a tick is one unit of the slowest clock. Each clock may gain one tick in every RHO_TICKS, chosen anew each
 * time, so rates of two clocks differ by a factor of up to rho = 1 + 1/RHO_TICKS. Only differences of readings of one
 * clock occur in the protocol, so each is a counter that its own clock's ticks drive.
 */
#define SESSIONS 2
#include "lease.pml"

#define H 2
#define D 1
#define RHO_TICKS 3
#ifdef M_NO_MARGIN
#define W H
#else
#ifdef M_MARGIN_WITHOUT_RHO
#define W (H + D)
#else
#define W 4              /* = rho (H + D) */
#endif
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif

/* What a session's process knows or has under way. */
byte left[SESSIONS];       /* ticks to its deadline + D: above D it may emit, above 0 what it emitted may land */
byte held[SESSIONS];       /* the epoch under which it runs the connection; 0: it does not */
byte flying[SESSIONS];     /* epoch of a record on its way to the sink; 0: none */
bool over[SESSIONS];       /* it knows that it lost its session */
byte beat[SESSIONS];       /* a heartbeat: none, under way, applied but unanswered */
#define NONE    0
#define SENT    1
#define UNHEARD 2
byte beat_age[SESSIONS];   /* ticks since before its first attempt */
byte claim_prev[SESSIONS]; /* a claim on its way, for ever: the condition's owner ... */
byte claim_epoch[SESSIONS];/* ... and epoch; 0: none */
byte release_epoch[SESSIONS];

/* What the judge knows or has under way. */
byte watched[SESSIONS];    /* ticks for which the seq has stood still, up to W */
bool observed[SESSIONS];
bool seq_moved[SESSIONS];  /* a heartbeat landed since */
bool declare[SESSIONS];    /* a declare is on its way, and the seq in its condition is still the row's */

byte emitted;              /* the highest epoch of a record that landed ... */
byte emitted_by;           /* ... and who sent it */
byte phase;                /* ticks since clocks could last gain */

#define drained(s) (left[s] == 0 || (left[s] <= D && flying[s] == 0))
#define takeable(o) (o == FREE || (is_session(o) && session[o] == DEAD) || (is_session(o) && absent_long(o)))
#ifdef M_ABSENT_DEAD_AT_ONCE
#define absent_long(o) (session[o] == ABSENT)
#else
#define absent_long(o) (session[o] == ABSENT && observed[o] && !seq_moved[o] && watched[o] == W)
#endif

#ifdef M_UNOBSERVED_DEAD_AT_ONCE
#define may_declare(s) (!declare[s] && !seq_moved[s])
#else
#ifdef M_DEAD_WITHOUT_SEQ
#define may_declare(s) (!declare[s] && observed[s] && watched[s] == W)
#else
#define may_declare(s) (!declare[s] && observed[s] && !seq_moved[s] && watched[s] == W)
#endif
#endif

#ifdef M_RELEASE_BEFORE_DRAIN
#define flushed(s) true
#else
#define flushed(s) (flying[s] == 0)
#endif
#ifdef M_LOST_RELEASES_BEFORE_DRAIN
#define flushed_when_lost(s) true
#else
#define flushed_when_lost(s) (flying[s] == 0)
#endif

#ifdef REACH
#define reached(x) assert(x != REACH)
#else
#define reached(x) skip
#endif
#define R_TAKEOVER_EMITS 1
#define R_HOLD_THEN_RESUME 2
#define R_BEAT_APPLIED_UNANSWERED_SETTLED 3
#define R_LATE_DECLARE_REFUSED 4
#define R_CLAIM_LANDS_FOR_DEAD 5
#define R_LAST_RECORD_LANDS_AFTER_DEADLINE 6
#define R_ABSENT_TAKEN 7
#define R_RELEASED_AND_CLAIMED 8

/* What can never matter again is forgotten, so that states which differ only in that are one. */
inline forget_watch(s) { watched[s] = 0; observed[s] = false; seq_moved[s] = false; declare[s] = false }
inline forget_refused(s) {
    if
    :: claim_epoch[s] != 0 && claim_epoch[s] < row.epoch -> claim_epoch[s] = 0; claim_prev[s] = 0
    :: else
    fi;
    if
    :: release_epoch[s] != 0 && release_epoch[s] < row.epoch -> release_epoch[s] = 0
    :: else
    fi
}

inline land_beat(s) {
    if
    :: session[s] == LIVE -> beat[s] = UNHEARD; seq_moved[s] = true;
#ifndef M_DEAD_WITHOUT_SEQ
        if
        :: declare[s] -> reached(R_LATE_DECLARE_REFUSED); declare[s] = false
        :: else
        fi
#endif
    :: else
    fi
}

inline tick_session(s, ticks, judge_ticks) {
    left[s] = (left[s] > ticks -> left[s] - ticks : 0);
    if
    :: left[s] == 0 -> flying[s] = 0
    :: else
    fi;
    if
    :: beat[s] != NONE -> beat_age[s] = (beat_age[s] + ticks < H -> beat_age[s] + ticks : H)
    :: else
    fi;
    if
    :: observed[s] -> watched[s] = (watched[s] + judge_ticks < W -> watched[s] + judge_ticks : W)
    :: else
    fi
}

inline tick(ticks_0, ticks_1, judge_ticks) {
    tick_session(0, ticks_0, judge_ticks);
    tick_session(1, ticks_1, judge_ticks);
    phase = (phase + 1) % RHO_TICKS
}

proctype Clocks() {
    do
    :: d_step { tick(1, 1, 1) }
    :: d_step { phase == 0 -> tick(2, 1, 1) }
    :: d_step { phase == 0 -> tick(1, 2, 1) }
    :: d_step { phase == 0 -> tick(2, 2, 1) }
    :: d_step { phase == 0 -> tick(1, 1, 2) }
    :: d_step { phase == 0 -> tick(2, 1, 2) }
    :: d_step { phase == 0 -> tick(1, 2, 2) }
    :: d_step { phase == 0 -> tick(2, 2, 2) }
    od
}

proctype Session(byte me) {
    do
    /* Heartbeat. An answered attempt may be the first or a retry: it lands now, or finds that one landed before. */
    :: d_step { !over[me] && beat[me] == NONE -> beat[me] = SENT; beat_age[me] = 0 }
    :: d_step { !over[me] && beat[me] != NONE ->
        if
        :: session[me] == LIVE ->
            if
            :: beat[me] == SENT -> land_beat(me)
            :: else -> reached(R_BEAT_APPLIED_UNANSWERED_SETTLED)
            fi;
            if
            :: left[me] <= D && held[me] != 0 && beat_age[me] < H -> reached(R_HOLD_THEN_RESUME)
            :: else
            fi;
#ifdef M_STAMPED_ON_ANSWER
            left[me] = H + D;
#else
            left[me] = (H - beat_age[me] + D > left[me] -> H - beat_age[me] + D : left[me]);
#endif
        :: else -> over[me] = true; held[me] = 0
        fi;
        beat[me] = NONE; beat_age[me] = 0
       }
#ifdef M_UNKNOWN_BEAT_TAKEN_AS_OK
    :: d_step { !over[me] && beat[me] == SENT && held[me] != 0 -> left[me] = H + D - beat_age[me] }
#endif
    /* Every emit checks the deadline first. */
    :: d_step { held[me] != 0 && left[me] > D && flying[me] == 0 ->
        flying[me] = held[me];
        if
        :: held[me] > 1 && !(is_session(row.owner) && row.owner != me) -> reached(R_TAKEOVER_EMITS)
        :: else
        fi
       }
    /* Claim after a consistent read; it may land whenever it likes, also when its session is long dead. */
    :: d_step { !over[me] && held[me] == 0 && takeable(row.owner) && row.epoch < EPOCHS ->
        if
        :: is_session(row.owner) && session[row.owner] == ABSENT -> reached(R_ABSENT_TAKEN)
        :: else
        fi;
        claim_prev[me] = row.owner; claim_epoch[me] = row.epoch
       }
    /* The claim's answer, a retry's answer or the self-audit: the row says that it is mine. */
    :: d_step { !over[me] && held[me] == 0 && row.owner == me && row.epoch != release_epoch[me] -> held[me] = row.epoch }
#ifdef M_UNKNOWN_CLAIM_TAKEN_AS_OK
    :: d_step { !over[me] && held[me] == 0 && claim_epoch[me] != 0 -> held[me] = claim_epoch[me] + 1 }
#endif
    /* Release: nothing of this epoch is emitted from here on, and nothing is in flight. */
    :: d_step { !over[me] && held[me] != 0 && held[me] < EPOCHS && flushed(me) ->
        release_epoch[me] = held[me]; held[me] = 0
       }
    /* A session that knows it is lost releases by index what still names it, once nothing of its own is in flight. */
    :: d_step { over[me] && row.owner == me && row.epoch < EPOCHS && flushed_when_lost(me) ->
        release_epoch[me] = row.epoch
       }
    od
}

proctype Judge() {
    do
    :: d_step { session[0] != DEAD && (seq_moved[0] || !observed[0]) -> observed[0] = true; seq_moved[0] = false; watched[0] = 0 }
    :: d_step { session[1] != DEAD && (seq_moved[1] || !observed[1]) -> observed[1] = true; seq_moved[1] = false; watched[1] = 0 }
    :: d_step { session[0] == LIVE && may_declare(0) -> declare[0] = true }
    :: d_step { session[1] == LIVE && may_declare(1) -> declare[1] = true }
    od
}
/* Whatever is on its way may land now, its answer lost or too late; the slot stays, so that it may land again. */
proctype Network(byte s) {
    do
    :: d_step { beat[s] == SENT && session[s] == LIVE -> land_beat(s) }
    :: d_step { flying[s] != 0 && left[s] > 0 ->
        assert(flying[s] > emitted || (flying[s] == emitted && emitted_by == s));   /* invariant 1; an epoch is one session's */
        if
        :: left[s] <= D -> reached(R_LAST_RECORD_LANDS_AFTER_DEADLINE)
        :: else
        fi;
        emitted = flying[s]; emitted_by = s; flying[s] = 0
       }
    :: d_step { declare[s] && session[s] == LIVE ->
        assert(drained(s));                                         /* what the other models assume */
        session[s] = DEAD; forget_watch(s)
       }
    :: d_step { claim_epoch[s] != 0 && may_claim(claim_prev[s], claim_epoch[s]) ->
        if
        :: session[s] != LIVE -> reached(R_CLAIM_LANDS_FOR_DEAD)
        :: claim_prev[s] == FREE -> reached(R_RELEASED_AND_CLAIMED)
        :: else
        fi;
        apply_claim(s); forget_refused(0); forget_refused(1)
       }
    :: d_step { release_epoch[s] != 0 && may_release(s, release_epoch[s]) -> apply_release(0, false) }
    od
}

/* An operator deletes the row of a session by hand. */
proctype Operator() {
    d_step { session[0] == LIVE -> session[0] = ABSENT; seq_moved[0] = true; declare[0] = false }
}

init {
    atomic {
        row.owner = 0; row.epoch = 1; held[0] = 1;
        left[0] = H + D; left[1] = H + D;
        run Session(0); run Session(1); run Network(0); run Network(1);
        run Judge(); run Operator(); run Clocks()
    }
}
