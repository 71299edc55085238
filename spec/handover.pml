/*
 * Ownership and hand-over: claim, release, park, offer, ready, decline, transfer, regrant, checkpoint, with any process
 * failing at any step. Three sessions; 0 owns the connection at epoch 1; 0 and 1 hand over to each other; all three claim.
 *
 * Any attempt of any write may land late, again, or after its sender's death: once sent, its slot stays and the network
 * may apply it whenever its condition holds. An answer comes from one more attempt, which lands and is answered in one
 * step. A slot is emptied only when the row has moved on so far that its condition can never hold again (an exact
 * reduction), or when its sender sends another write of the same kind (the bound: one late attempt per kind and session).
 *
 * Time is abstracted to what the timed models establish:
 * - A judge's DEAD lands only on a session that is `fenced`: past its deadline + D, so it emits nothing, nothing of it is
 *   in flight, and a heartbeat could still bring it back (asserted in death.pml). It is the session, not the connection,
 *   that comes back: resume after an outage.
 * - After a claim, the claimer emits and transfers only once nothing of an exited process is in flight (the wait,
 *   exit.pml). A process that exits has something in flight only if it owned the connection then, hence before the claim.
 * -DANY_CLOCKS drops both: a judge may declare anybody at any time, as if all clocks were wrong or VMs frozen. Then only
 * invariant 2 is asserted.
 *
 * Messages: the upstream sends the same numbered messages to every open socket; a socket sees those sent after it opened.
 * A hand-over must lose and double none, so the sink asserts consecutive numbers, except after a claim (a gap); but not
 * after the claim of what was released by a standby whose buffer begins early enough.
 */
#define SESSIONS 3
#include "lease.pml"

#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef NONCES
#define NONCES 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef CHANGES
#define CHANGES 0
#endif
#ifdef ANY_CLOCKS
#define EMITS false
#define CHECKPOINTS true
#else
#define EMITS true
#define CHECKPOINTS false
#endif
#ifndef RELEASING
#define RELEASING false
#endif

/* Process and session. */
bool exited[SESSIONS];
bool over[SESSIONS];         /* it knows that it lost its session */
bool fenced[SESSIONS];

/* The connection as this process runs it. */
byte held[SESSIONS];         /* the epoch under which it runs; 0: it does not */
byte step[SESSIONS];         /* what it is doing with it */
#define RUNS      0
#define OFFERED   1
#define STOPPED_READING 2
#define TRANSFERS 3
#define REGRANTS  4
#define RELEASES  5
#define PARKS     6
#define PARKS_AFTER_RELEASE 7
bool waits[SESSIONS];        /* it claimed, and the wait is not over */
byte out[SESSIONS];          /* number of the last message it emitted */
byte flying[SESSIONS];       /* epoch of a record on its way; 0: none */
byte carried[SESSIONS];      /* and its message */
byte standby[SESSIONS];      /* nonce of the offer for which it holds an open socket and buffers; 0: none */
byte from[SESSIONS];         /* messages sent up to here came before that socket opened */

/* Writes on their way; 0: none. */
byte claim_prev[SESSIONS]; byte claim_epoch[SESSIONS];
byte offer_epoch[2]; byte offer_nonce[2]; byte offer_generation[2];
byte ready_epoch[2]; byte ready_nonce[2];
byte decline_epoch[2]; byte decline_nonce[2];
byte transfer_epoch[2]; byte transfer_nonce[2]; byte transfer_last[2];
byte regrant_epoch[2];
byte release_epoch[SESSIONS]; byte release_last[SESSIONS];
byte park_epoch[SESSIONS]; byte park_generation[SESSIONS];
byte checkpoint_epoch[SESSIONS]; byte checkpoint_tenure[SESSIONS];

/* The world, and what the checks remember. */
byte nonces;                 /* nonces drawn */
byte upstream;               /* messages sent */
byte emitted;                /* highest epoch of a record that landed */
byte landed;                 /* number of the last message that landed */
bool gap;                    /* a claim happened since: the next record may have any number */
byte tenure;                 /* changes of owner, whatever the epoch says */
byte checkpointed;           /* highest tenure whose checkpoint was accepted */

#if MESSAGES > 0
#define has_message(s) (out[s] < upstream)
#else
#define has_message(s) EMITS
#endif
#define peer(s) (1 - (s))
#define alive(s) (!exited[s] && !over[s])
#ifdef ANY_CLOCKS
#define drained true
#define may_declare(s) true
#else
#define drained (!(exited[0] && flying[0] != 0) && !(exited[1] && flying[1] != 0) && !(exited[2] && flying[2] != 0))
#define may_declare(s) fenced[s]
#endif
#define flushed(s) (flying[s] == 0)
#ifdef M_TRANSFER_BEFORE_FLUSH
#define flushed_for_transfer(s) (!waits[s])
#else
#define flushed_for_transfer(s) (flushed(s) && !waits[s])
#endif
#ifdef M_STOPS_READING_WITHOUT_OVERLAP
#define overlaps(s) true
#else
#define overlaps(s) (out[s] >= from[peer(s)])
#endif

/* A session may decline what it has not said ready to, and does not say ready to what it has declined. */
#if defined(DECLINES_AFTER_READY) || defined(M_DECLINES_AFTER_READY)
#define may_decline(s) true
#define may_say_ready(s) true
#else
#define may_decline(s) (ready_nonce[s] != row.next.nonce)
#define may_say_ready(s) (decline_nonce[s] != row.next.nonce)
#endif

#ifdef REACH
#define reached(x) assert(x != REACH)
#else
#define reached(x) skip
#endif
#define R_TRANSFERRED_AND_EMITTED 1
#define R_TRANSFER_LANDS_UNANSWERED 2
#define R_TRANSFER_REFUSED_THEN_REGRANT 3
#define R_HANDED_BACK 4
#define R_DECLINED 5
#define R_CLAIMED_DURING_OFFER 6
#define R_STALE_READY_REFUSED 7
#define R_FENCED_THEN_RESUMED 8
#define R_SUCCESSOR_OF_EXITED_EMITS 9
#define R_LATE_CLAIM_OF_DEAD 10
#define R_PARKED_AND_RESUMED 11
#define R_REFUSED_RELEASE 12
#define R_LATE_CHECKPOINT_REFUSED 13
#define R_FINALIZED 14
#define R_BUFFER_OVERLAP_DROPPED 15
#define R_CLAIMED_BEHIND_A_RELEASE 16

inline forget_common(s) {
    if
    :: claim_epoch[s] != 0 && claim_epoch[s] < row.epoch -> claim_epoch[s] = 0; claim_prev[s] = 0
    :: else
    fi;
    if
    :: release_epoch[s] != 0 && release_epoch[s] < row.epoch -> release_epoch[s] = 0; release_last[s] = 0
    :: else
    fi;
    if
#ifdef M_PARK_IGNORES_GENERATION
    :: park_epoch[s] != 0 && park_epoch[s] < row.epoch ->
#else
    :: park_epoch[s] != 0 && (park_epoch[s] < row.epoch || park_generation[s] < row.generation) ->
#endif
        park_epoch[s] = 0; park_generation[s] = 0
    :: else
    fi
}
inline forget_handover(s) {
    if
    :: offer_epoch[s] != 0 && offer_epoch[s] < row.epoch -> offer_epoch[s] = 0; offer_nonce[s] = 0; offer_generation[s] = 0
    :: else
    fi;
    if
    :: ready_epoch[s] != 0 && ready_epoch[s] < row.epoch -> ready_epoch[s] = 0; ready_nonce[s] = 0
    :: else
    fi;
    if
    :: decline_epoch[s] != 0 && decline_epoch[s] < row.epoch -> decline_epoch[s] = 0; decline_nonce[s] = 0
    :: else
    fi;
    if
    :: transfer_epoch[s] != 0 && transfer_epoch[s] < row.epoch -> transfer_epoch[s] = 0; transfer_nonce[s] = 0; transfer_last[s] = 0
    :: else
    fi;
    if
    :: regrant_epoch[s] != 0 && regrant_epoch[s] < row.epoch -> regrant_epoch[s] = 0
    :: else
    fi
}
inline forget_refused() {
    forget_common(0); forget_common(1); forget_common(2); forget_handover(0); forget_handover(1)
}

/* It no longer runs the connection. */
inline let_go(s) { held[s] = 0; step[s] = RUNS; out[s] = 0; waits[s] = false }
inline stand_down(s) { standby[s] = 0; from[s] = 0 }

inline land_claim(s) {
    if
    :: row.next.nonce != 0 -> reached(R_CLAIMED_DURING_OFFER)
    :: dead(s) -> reached(R_LATE_CLAIM_OF_DEAD)
    :: else
    fi;
    waits[s] = EMITS;
    apply_claim(s); tenure++;
    if
    :: row.handed && standby[s] != 0 && from[s] <= row.handoff -> reached(R_CLAIMED_BEHIND_A_RELEASE)
    :: else -> gap = MESSAGES > 0
    fi;
    forget_refused()
}

proctype Session(byte me) {
    do
    /* --- the session itself --- */
#ifndef ANY_CLOCKS
    :: d_step { alive(me) && !fenced[me] && flying[me] == 0 && !dead(me) -> fenced[me] = true }
    :: d_step { alive(me) && fenced[me] && !dead(me) -> fenced[me] = false; reached(R_FENCED_THEN_RESUMED) }
#endif
    :: d_step { alive(me) && dead(me) -> over[me] = true; fenced[me] = false; let_go(me); stand_down(me) }
    :: d_step { alive(me) -> exited[me] = true; fenced[me] = false; let_go(me); stand_down(me) }

    /* --- run --- */
    :: d_step { alive(me) && held[me] != 0 && !fenced[me] && !waits[me] && step[me] <= OFFERED && flying[me] == 0 && has_message(me) ->
        flying[me] = held[me];
#if MESSAGES > 0
        out[me]++; carried[me] = out[me]
#endif
       }
    :: d_step { alive(me) && held[me] != 0 && waits[me] && drained -> waits[me] = false }
    :: d_step { CHECKPOINTS && alive(me) && held[me] != 0 && step[me] == RUNS && checkpoint_epoch[me] != held[me] ->
        checkpoint_epoch[me] = held[me]; checkpoint_tenure[me] = tenure }

    /* --- claim: after a consistent read; it is never given up --- */
    :: d_step { alive(me) && held[me] == 0 && row.epoch < EPOCHS && row.desired == RUNNING && claim_epoch[me] == 0 &&
                (row.owner == FREE || (is_session(row.owner) && dead(row.owner))) ->
        claim_prev[me] = row.owner; claim_epoch[me] = row.epoch
       }
    /* --- the row says that it is mine: an answer, a hint, the standby's look, the self-audit --- */
    :: d_step { alive(me) && held[me] == 0 && row.owner == me ->
        held[me] = row.epoch; step[me] = RUNS;
        if
        :: row.handed && standby[me] != 0 ->
            if
            :: from[me] < row.handoff -> reached(R_BUFFER_OVERLAP_DROPPED)
            :: else
            fi;
            out[me] = (from[me] > row.handoff -> from[me] : row.handoff)
        :: else -> out[me] = upstream
        fi;
        stand_down(me)
       }

    /* --- release and park, once everything of this epoch has landed --- */
    :: d_step { RELEASING && alive(me) && held[me] != 0 && step[me] <= OFFERED && held[me] < EPOCHS && flushed(me) && row.desired == RUNNING ->
        release_epoch[me] = held[me]; release_last[me] = out[me]; step[me] = RELEASES }
    :: d_step { alive(me) && step[me] == RELEASES ->         /* answered */
        if
        :: may_release(me, held[me]) -> apply_release(release_last[me], MESSAGES > 0); let_go(me)
        :: else ->
            if
            :: owns(me, held[me]) -> reached(R_REFUSED_RELEASE); step[me] = PARKS_AFTER_RELEASE;
                park_epoch[me] = held[me]; park_generation[me] = row.generation
            :: else -> let_go(me)
            fi
        fi
       }
    :: d_step { alive(me) && held[me] != 0 && step[me] <= OFFERED && flushed(me) && row.desired != RUNNING && owns(me, held[me]) ->
        park_epoch[me] = held[me]; park_generation[me] = row.generation; step[me] = PARKS }
    :: d_step { alive(me) && (step[me] == PARKS || step[me] == PARKS_AFTER_RELEASE) ->
        if
        :: owns(me, held[me]) && row.desired == RUNNING ->
#ifdef M_GOES_ON_AFTER_REFUSED_RELEASE
            step[me] = RUNS
#else
            step[me] = (step[me] == PARKS -> RUNS : RELEASES)
#endif
        :: owns(me, held[me]) && row.desired != RUNNING -> apply_park(); let_go(me)
        :: else -> let_go(me)
        fi
       }
    od
}

/* What a session in a hand-over does beside that. */
proctype Handover(byte me) {
    do
    /* --- the old owner --- */
    :: d_step { alive(me) && held[me] != 0 && step[me] <= OFFERED && held[me] < EPOCHS && nonces < NONCES ->
        nonces++; step[me] = OFFERED;
        offer_epoch[me] = held[me]; offer_nonce[me] = nonces; offer_generation[me] = row.generation }
    :: d_step { alive(me) && step[me] == OFFERED && owns(me, held[me]) && row.next.ready &&
                row.next.nonce == offer_nonce[me] && !dead(peer(me)) && overlaps(me) ->
        step[me] = STOPPED_READING }
    :: d_step { alive(me) && step[me] == STOPPED_READING && flushed_for_transfer(me) ->
        step[me] = TRANSFERS; transfer_epoch[me] = held[me]; transfer_nonce[me] = offer_nonce[me]; transfer_last[me] = out[me] }
    :: d_step { alive(me) && step[me] == TRANSFERS ->        /* answered */
        if
        :: may_transfer(me, held[me], offer_nonce[me]) -> apply_transfer(transfer_last[me]); tenure++; forget_refused(); let_go(me)
        :: else ->
            if
#ifdef M_GOES_ON_AFTER_REFUSED_TRANSFER
            :: owns(me, held[me]) -> step[me] = RUNS
#else
            :: owns(me, held[me]) && held[me] < EPOCHS -> step[me] = REGRANTS; regrant_epoch[me] = held[me]
            :: owns(me, held[me]) && held[me] == EPOCHS
#endif
            :: else -> let_go(me)
            fi
        fi
       }
#ifdef M_UNKNOWN_TRANSFER_TAKEN_AS_LOST
    :: d_step { alive(me) && step[me] == TRANSFERS -> step[me] = RUNS }
#endif
    :: d_step { alive(me) && step[me] == REGRANTS ->         /* answered */
        if
        :: may_regrant(me, held[me]) ->
#ifndef M_REGRANT_KEEPS_EPOCH
            tenure++;
#endif
            apply_regrant(); forget_refused();
            held[me] = row.epoch; step[me] = RUNS; reached(R_TRANSFER_REFUSED_THEN_REGRANT)
        :: row.owner == me && row.epoch == held[me] + 1 -> held[me] = row.epoch; step[me] = RUNS
        :: else -> let_go(me)
        fi
       }

    /* --- the new owner --- */
    :: d_step { alive(me) && held[me] == 0 && standby[me] == 0 && row.next.nonce != 0 && row.next.session == me && !row.next.ready ->
        standby[me] = row.next.nonce; from[me] = upstream }
    :: d_step { alive(me) && standby[me] != 0 && row.next.nonce == standby[me] && owns(peer(me), row.next.for_epoch) &&
                !row.next.ready && may_say_ready(me) ->
        ready_epoch[me] = row.next.for_epoch; ready_nonce[me] = standby[me] }
    :: d_step { alive(me) && held[me] == 0 && row.next.nonce != 0 && row.next.session == me && decline_nonce[me] != row.next.nonce &&
                may_decline(me) ->
        decline_epoch[me] = row.next.for_epoch; decline_nonce[me] = row.next.nonce }
    :: d_step { alive(me) && standby[me] != 0 && row.next.nonce != standby[me] && row.owner != me -> stand_down(me) }
    od
}

/* Whatever is on its way may land, late or again. */
proctype Network(byte s) {
    do
    :: d_step { flying[s] != 0 ->
#ifndef ANY_CLOCKS
        assert(flying[s] >= emitted);                        /* invariant 1 */
        if
        :: s != 2 && row.handed && flying[s] == row.epoch -> reached(R_TRANSFERRED_AND_EMITTED)
        :: exited[0] && s == 1 && !row.handed && flying[s] == row.epoch -> reached(R_SUCCESSOR_OF_EXITED_EMITS)
        :: else
        fi;
        emitted = flying[s];
#if MESSAGES > 0 && !defined(DECLINES_AFTER_READY)
        assert(gap || carried[s] == landed + 1);             /* none lost, none doubled */
#endif
        landed = carried[s]; gap = false;
#endif
        flying[s] = 0; carried[s] = 0
       }
    :: d_step { claim_epoch[s] != 0 && may_claim(claim_prev[s], claim_epoch[s]) -> land_claim(s) }
    :: d_step { release_epoch[s] != 0 && may_release(s, release_epoch[s]) -> apply_release(release_last[s], MESSAGES > 0) }
    :: d_step { park_epoch[s] != 0 && may_park(s, park_epoch[s], park_generation[s]) -> apply_park() }
    :: d_step { checkpoint_epoch[s] != 0 ->
        if
        :: may_checkpoint(s, checkpoint_epoch[s]) ->
            assert(checkpoint_tenure[s] == tenure && checkpoint_tenure[s] >= checkpointed);        /* invariant 2 */
            checkpointed = checkpoint_tenure[s]
        :: else -> reached(R_LATE_CHECKPOINT_REFUSED)
        fi;
        checkpoint_epoch[s] = 0; checkpoint_tenure[s] = 0
       }
    od
}

proctype HandoverNetwork(byte s) {
    do
    :: d_step { offer_epoch[s] != 0 && may_offer(s, offer_epoch[s], offer_nonce[s] - 1) ->
        apply_offer(peer(s), offer_epoch[s], offer_nonce[s], offer_generation[s]) }
    :: d_step { ready_epoch[s] != 0 && may_answer(peer(s), ready_epoch[s], s, ready_nonce[s]) -> apply_ready() }
    :: d_step { decline_epoch[s] != 0 && may_answer(peer(s), decline_epoch[s], s, decline_nonce[s]) ->
        apply_decline(); reached(R_DECLINED) }
#ifdef REACH
    :: d_step { ready_epoch[s] != 0 && offered(peer(s), ready_epoch[s], s) && row.next.nonce > ready_nonce[s] ->
        reached(R_STALE_READY_REFUSED) }
#endif
    :: d_step { transfer_epoch[s] != 0 && may_transfer(s, transfer_epoch[s], transfer_nonce[s]) ->
        reached(R_TRANSFER_LANDS_UNANSWERED);
        if
        :: tenure > 0 && s == 1 -> reached(R_HANDED_BACK)
        :: else
        fi;
        apply_transfer(transfer_last[s]); tenure++; forget_refused() }
    :: d_step { regrant_epoch[s] != 0 && may_regrant(s, regrant_epoch[s]) ->
#ifndef M_REGRANT_KEEPS_EPOCH
        tenure++;
#endif
        apply_regrant(); forget_refused() }
    od
}

init {
    atomic {
        row.owner = 0; row.epoch = 1; held[0] = 1;
        run Session(0); run Session(1); run Session(2);
        run Handover(0); run Handover(1);
        run Network(0); run Network(1); run Network(2); run HandoverNetwork(0); run HandoverNetwork(1);
        run Deaths(); run World()
    }
}

/* The judges, the supervisors and the sweeper that finalizes what a dead session owns and nobody wants. */
proctype Deaths() {
    do
    :: d_step { !exited[0] && !dead(0) && may_declare(0) -> session[0] = DEAD }
    :: d_step { !exited[1] && !dead(1) && may_declare(1) -> session[1] = DEAD }
    :: d_step { !exited[2] && !dead(2) && may_declare(2) -> session[2] = DEAD }
    :: d_step { exited[0] && !dead(0) -> session[0] = DEAD_EXIT }
    :: d_step { exited[1] && !dead(1) -> session[1] = DEAD_EXIT }
    :: d_step { exited[2] && !dead(2) -> session[2] = DEAD_EXIT }
    :: d_step { is_session(row.owner) && dead(row.owner) && row.desired != RUNNING -> apply_park(); reached(R_FINALIZED) }
    od
}

proctype World() {
    do
    :: d_step { upstream < MESSAGES -> upstream++ }
    :: d_step { row.generation < CHANGES && row.desired == RUNNING -> change_desired(PAUSED); forget_refused() }
    :: d_step { row.generation < CHANGES && row.desired == PAUSED -> change_desired(RUNNING); forget_refused();
        if
        :: row.owner == FREE -> reached(R_PARKED_AND_RESUMED)
        :: else
        fi }
    od
}
