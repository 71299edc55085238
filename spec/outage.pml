/*
 * Outage: a healthy session survives an outage that hits everybody, of any length, of reads, of writes or of both.
 *
 * One holder, one judge that is a session itself. Of the time in which the store takes writes, no BEAT ticks pass without
 * a heartbeat of each; while it answers reads, the judge reads at least every tick. The holder is never paused, so no
 * judge may declare it: part of invariant 4. All timers count ticks of one clock: what is at stake here is W against an
 * outage, not rates (death.pml has those).
 *
 * An outage of the holder's key alone is not modelled: such a holder is past its deadline and may be declared.
 */
#define SESSIONS 2
#include "lease.pml"

#define R 1
#define BEAT 2              /* R and the time-out of a call */
#define H 4
#define W 7

bool reads_down; bool writes_down;
byte up_for = BEAT;         /* ticks since the store takes writes again, up to BEAT: how far apart outages are */
byte since_beat;            /* ticks since a heartbeat of the holder landed, up to H */
byte beat_due;              /* ticks, outages left out, since then */
byte own_age;               /* ticks since a heartbeat of the judge was acknowledged, up to 2 R + 1 */
byte own_due;
byte steady;                /* ticks for which the judge's own heartbeats were acknowledged, up to W */
byte watched; bool observed; bool seq_moved;
bool read_now;
bool declare;

#ifdef REACH
#define reached(x) assert(x != REACH)
#else
#define reached(x) skip
#endif
#define R_HELD_THEN_RESUMED 1
#define R_OBSERVATION_RESTARTED 2
#define R_JUDGE_MAY_DECLARE 3

#define up_to(x, limit) (x < limit -> x + 1 : limit)
#ifdef M_OBSERVATIONS_KEPT
#define uninterrupted true
#define may_declare (observed && watched == W)
#else
#ifdef M_DECLARES_WITHOUT_OWN_W
#define uninterrupted (own_age <= 2 * R)
#define may_declare (observed && watched == W)
#else
#define uninterrupted (own_age <= 2 * R)
#define may_declare (observed && watched == W && steady == W)
#endif
#endif

proctype Clock() {
    do
    :: d_step { (writes_down || (beat_due < BEAT && own_due < BEAT)) && (reads_down || read_now) ->
        since_beat = up_to(since_beat, H);
        beat_due = (writes_down -> beat_due : beat_due + 1);
        up_for = (writes_down -> up_for : up_to(up_for, BEAT));
        own_due = (writes_down -> own_due : own_due + 1);
        if
        :: own_age == 2 * R && observed -> reached(R_OBSERVATION_RESTARTED);
#ifndef M_OBSERVATIONS_KEPT
            observed = false; watched = 0
#else
            skip
#endif
        :: else
        fi;
        own_age = up_to(own_age, 2 * R + 1);
        steady = (own_age <= 2 * R -> up_to(steady, W) : 0);
        watched = (observed -> up_to(watched, W) : 0);
        if
        :: steady == W && since_beat < H -> reached(R_JUDGE_MAY_DECLARE)
        :: else
        fi;
        read_now = false
       }
    od
}

proctype Holder() {
    do
    :: d_step { !writes_down && beat_due > 0 ->
        if
        :: since_beat == H -> reached(R_HELD_THEN_RESUMED)
        :: else
        fi;
        since_beat = 0; beat_due = 0; seq_moved = true; declare = false }
    od
}

proctype Judge() {
    do
    :: d_step { !writes_down && own_due > 0 -> own_age = 0; own_due = 0 }
    :: d_step { !reads_down && !read_now ->
        read_now = true;
        if
        :: seq_moved || !observed -> observed = true; seq_moved = false; watched = 0
        :: else
        fi }
    :: d_step { may_declare && !declare && !seq_moved -> declare = true }
    :: d_step { declare && !writes_down -> assert(false) }              /* a healthy session is declared dead */
    od
}

proctype Store() {
    do
    :: reads_down = !reads_down
    :: d_step { writes_down -> writes_down = false; up_for = 0 }
    :: d_step { !writes_down && up_for == BEAT -> writes_down = true }
    od
}

init { atomic { steady = W; run Clock(); run Holder(); run Judge(); run Store() } }
