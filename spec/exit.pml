/*
 * Death by evidence: a supervisor reaps a process and writes DEAD_EXIT without waiting for W, while what the process had
 * sent may still be on its way. It lands before D ticks after the exit (the time-outs of an emitting call), so a claimer
 * waits before its first emit, and does not transfer before either.
 *
 * Three sessions, any of which may exit, claim, release, transfer and park; the sweeper finalizes what nobody wants; the
 * API pauses and resumes. A judge may declare a session that has nothing in flight; from then on it cannot emit, but it
 * need not know, so its claims and transfers may still land. Heartbeats and deadlines are left out (death.pml has them).
 * The offer and the ready of a transfer are one step with it (handover.pml has them).
 *
 * Checked: invariant 1 at every landing.
 *
 * Clocks: a tick is one unit of the slowest clock, which counts the exited process's D. A wait of rho D on the fastest clock
 * lasts D of these; all other clocks make the waits longer or the drains shorter, which allows less. rho is 2 here.
 */
#define SESSIONS 3
#include "lease.pml"

#define D 2
#ifdef M_NO_WAIT
#define WAIT 0
#else
#ifdef M_WAIT_WITHOUT_RHO
#define WAIT 1             /* D on a clock that runs twice as fast */
#else
#define WAIT 2             /* rho D on a clock that runs rho times as fast */
#endif
#endif
#ifndef EPOCHS
#define EPOCHS 4
#endif
#ifndef CHANGES
#define CHANGES 2
#endif

bool exited[SESSIONS];
byte draining[SESSIONS];      /* ticks for which what an exited process sent may still land */
byte flying[SESSIONS];        /* epoch of a record on its way to the sink; 0: none */
byte held[SESSIONS];          /* the epoch under which it runs the connection; 0: it does not */
byte waits[SESSIONS];         /* ticks until it may emit and transfer */
byte claim_prev[SESSIONS];
byte claim_epoch[SESSIONS];
byte release_epoch[SESSIONS];
byte transfer_epoch[SESSIONS];
byte park_epoch[SESSIONS];
byte park_generation[SESSIONS];
byte emitted;

#ifdef M_TRANSFER_DURING_WAIT
#define may_hand_over(s) (flying[s] == 0)
#else
#define may_hand_over(s) (flying[s] == 0 && waits[s] == 0)
#endif
#ifdef M_WAIT_ONLY_AFTER_EXIT
#define wait_after(o) (is_session(o) && session[o] == DEAD_EXIT -> WAIT : 0)
#else
#ifdef M_WAIT_ONLY_AFTER_DEATH
#define wait_after(o) (is_session(o) -> WAIT : 0)
#else
#define wait_after(o) WAIT
#endif
#endif

#ifdef REACH
#define reached(x) assert(x != REACH)
#else
#define reached(x) skip
#endif
#define R_LANDS_AFTER_CLAIM 1
#define R_SUCCESSOR_EMITS 2
#define R_RESUMED_AND_CLAIMED 3
#define R_FINALIZED 4
#define R_TRANSFERRED_ON 5
#define R_LATE_CLAIM_OF_DEAD 6

inline forget_refused(s) {
    if
    :: claim_epoch[s] != 0 && claim_epoch[s] < row.epoch ->
        claim_epoch[s] = 0; claim_prev[s] = 0;
        waits[s] = (row.owner == s -> waits[s] : 0)
    :: else
    fi;
    if
    :: release_epoch[s] != 0 && release_epoch[s] < row.epoch -> release_epoch[s] = 0
    :: else
    fi;
    if
    :: transfer_epoch[s] != 0 && transfer_epoch[s] < row.epoch -> transfer_epoch[s] = 0
    :: else
    fi;
    if
    :: park_epoch[s] != 0 && (park_epoch[s] < row.epoch || park_generation[s] < row.generation) ->
        park_epoch[s] = 0; park_generation[s] = 0
    :: else
    fi
}
inline forget_all_refused() { forget_refused(0); forget_refused(1); forget_refused(2) }

inline tick(s) {
    if
    :: exited[s] && draining[s] > 1 -> draining[s]--
    :: exited[s] && draining[s] == 1 -> draining[s] = 0; flying[s] = 0
    :: else
    fi;
    waits[s] = (waits[s] > 0 -> waits[s] - 1 : 0)
}

proctype Clocks() {
    do
    :: d_step { tick(0); tick(1); tick(2) }
    od
}

proctype Session(byte me) {
    do
    :: d_step { !exited[me] && held[me] != 0 && waits[me] == 0 && flying[me] == 0 && !dead(me) -> flying[me] = held[me] }
    :: d_step { !exited[me] && held[me] == 0 && row.epoch < EPOCHS && row.desired == RUNNING &&
                (row.owner == FREE || (is_session(row.owner) && dead(row.owner))) ->
        claim_prev[me] = row.owner; claim_epoch[me] = row.epoch;
        waits[me] = wait_after(row.owner)
       }
    :: d_step { !exited[me] && held[me] == 0 && row.owner == me &&
                row.epoch != release_epoch[me] && row.epoch != transfer_epoch[me] && row.epoch != park_epoch[me] -> held[me] = row.epoch }
    :: d_step { !exited[me] && held[me] != 0 && held[me] < EPOCHS && row.desired == RUNNING && flying[me] == 0 ->
        release_epoch[me] = held[me]; held[me] = 0 }
    :: d_step { !exited[me] && held[me] != 0 && held[me] < EPOCHS && row.desired != RUNNING && flying[me] == 0 ->
        park_epoch[me] = held[me]; park_generation[me] = row.generation; held[me] = 0 }
    :: d_step { !exited[me] && held[me] != 0 && held[me] < EPOCHS && may_hand_over(me) && owns(me, held[me]) ->
        apply_offer((me + 1) % SESSIONS, held[me], 1, row.generation); apply_ready();
        transfer_epoch[me] = held[me]; held[me] = 0 }
    :: d_step { !exited[me] ->
        exited[me] = true; held[me] = 0; waits[me] = 0; draining[me] = (flying[me] != 0 -> D : 0) }
    od
}

proctype Deaths() {
    do
    :: d_step { exited[0] && !dead(0) -> session[0] = DEAD_EXIT }
    :: d_step { exited[1] && !dead(1) -> session[1] = DEAD_EXIT }
    :: d_step { exited[2] && !dead(2) -> session[2] = DEAD_EXIT }
    :: d_step { !exited[0] && !dead(0) && flying[0] == 0 -> session[0] = DEAD }
    :: d_step { !exited[1] && !dead(1) && flying[1] == 0 -> session[1] = DEAD }
    :: d_step { !exited[2] && !dead(2) && flying[2] == 0 -> session[2] = DEAD }
    :: d_step { is_session(row.owner) && dead(row.owner) && row.desired != RUNNING -> apply_park(); reached(R_FINALIZED) }
    od
}

/* Whatever is on its way may land now, or again, however late. */
proctype Network(byte s) {
    do
    :: d_step { flying[s] != 0 ->
        assert(flying[s] >= emitted);                                   /* invariant 1 */
        if
        :: exited[s] && flying[s] < row.epoch -> reached(R_LANDS_AFTER_CLAIM)
        :: flying[s] >= 3 && exited[0] -> reached(R_SUCCESSOR_EMITS)
        :: else
        fi;
        emitted = flying[s]; flying[s] = 0; draining[s] = 0
       }
    :: d_step { claim_epoch[s] != 0 && may_claim(claim_prev[s], claim_epoch[s]) ->
        if
        :: dead(s) -> reached(R_LATE_CLAIM_OF_DEAD)
        :: row.generation == 2 && !dead(s) -> reached(R_RESUMED_AND_CLAIMED)
        :: else
        fi;
        apply_claim(s); forget_all_refused()
       }
    :: d_step { release_epoch[s] != 0 && may_release(s, release_epoch[s]) -> apply_release(0, false) }
    :: d_step { transfer_epoch[s] != 0 && may_transfer(s, transfer_epoch[s], 1) ->
        reached(R_TRANSFERRED_ON); apply_transfer(0); forget_all_refused(); waits[row.owner] = 0 }
    :: d_step { park_epoch[s] != 0 && may_park(s, park_epoch[s], park_generation[s]) -> apply_park() }
    od
}

proctype Api() {
    do
    :: d_step { row.generation < CHANGES && row.desired == RUNNING -> change_desired(PAUSED); forget_all_refused() }
    :: d_step { row.generation < CHANGES && row.desired == PAUSED -> change_desired(RUNNING); forget_all_refused() }
    od
}

init {
    atomic {
        row.owner = 0; row.epoch = 1; held[0] = 1;
        run Session(0); run Session(1); run Session(2);
        run Network(0); run Network(1); run Network(2);
        run Deaths(); run Api(); run Clocks()
    }
}
