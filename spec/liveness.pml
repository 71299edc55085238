/*
 * Liveness: once faults stop, a wanted connection is held and run by a live session, and stays so; one that is not wanted
 * is run by nobody, and stays so (invariant 3).
 *
 * Three sessions. 0 and 1 may crash at any step, with writes on their way, and 1 may be declared dead while it runs on;
 * 2 survives and has room ("that is wanted and fits"). 0 hands over to 1, 1 to 2. Faults are finite: crashes, LOSSES
 * writes that land without an answer or never, NONCES offers, CHANGES of desired, one release.
 *
 * Fairness: weak fairness of processes (pan -f), and there is one process per duty, so each duty that stays enabled is
 * done at last. That is what periodic loops give: heartbeat, judge, sweep, self-audit, the standby's look at the row.
 * Nothing else is assumed: every hint may be lost.
 *
 * Time is abstracted: a crashed session is declared dead some time later. Emitting and epochs' safety are left out.
 */
#define SESSIONS 3
#include "lease.pml"

#ifndef LOSSES
#define LOSSES 2
#endif
#ifndef NONCES
#define NONCES 2
#endif
#ifndef CHANGES
#define CHANGES 1
#endif

bool crashed[SESSIONS];
byte held[SESSIONS];
byte claim_prev[SESSIONS]; byte claim_epoch[SESSIONS];
byte offered_nonce[2];      /* the old owner's offer */
bool transferring[2]; bool regranting[2];
byte standby[SESSIONS];
bool releasing[2];
byte losses; byte nonces; bool released;
#ifdef M_SWEPT_ONLY_ONCE
bool swept[SESSIONS];
#endif

#define up(s) (!crashed[s] && !dead(s))
#define busy(s) (transferring[s] || regranting[s] || releasing[s])
#define runs(s) (!crashed[s] && held[s] != 0)
#define well_owned(s) (up(s) && owns(s, held[s]))
#define settled \
    ((row.desired == RUNNING && is_session(row.owner) && well_owned(row.owner)) || \
     (row.desired != RUNNING && !is_session(row.owner) && !runs(0) && !runs(1) && !runs(2)))

#ifdef M_CLAIMER_WAITS_FOR_NEXT
#define unpromised (row.next.nonce == 0)
#else
#define unpromised true
#endif
#ifdef M_SWEPT_ONLY_ONCE
#define sweepable(o) (is_session(o) && dead(o) && !swept[o])
#else
#define sweepable(o) (is_session(o) && dead(o))
#endif

ltl eventually_settled { <> [] settled }

inline let_go(s) {
    held[s] = 0;
    if
    :: s < 2 -> offered_nonce[s] = 0; transferring[s] = false; regranting[s] = false; releasing[s] = false
    :: else
    fi
}

/* Claims what its sweep finds; an answered attempt, or one given up. */
proctype Claimer(byte me) {
    do
    :: d_step { up(me) && held[me] == 0 && claim_epoch[me] == 0 && row.owner != me && row.desired == RUNNING && unpromised &&
                (row.owner == FREE || sweepable(row.owner)) ->
        claim_prev[me] = row.owner; claim_epoch[me] = row.epoch }
    :: d_step { up(me) && claim_epoch[me] != 0 ->
        if
        :: may_claim(claim_prev[me], claim_epoch[me]) -> apply_claim(me); held[me] = row.epoch; standby[me] = 0
        :: else
        fi;
        claim_epoch[me] = 0; claim_prev[me] = 0 }
    od
}

/* The self-audit, over its two periods; it leaves alone what has a release or transfer of its own under way. */
proctype Auditor(byte me) {
    do
#ifndef M_NO_AUDIT
    :: d_step { up(me) && held[me] == 0 && row.owner == me -> held[me] = row.epoch; standby[me] = 0 }
    :: d_step { !crashed[me] && held[me] != 0 && !owns(me, held[me]) && !(me < 2 && busy(me)) -> let_go(me) }
#endif
    :: d_step { up(me) && owns(me, held[me]) && row.desired != RUNNING && !(me < 2 && (transferring[me] || regranting[me])) ->
        apply_park(); let_go(me) }
    od
}

/* A heartbeat that is answered "lost". */
proctype Heart(byte me) {
    do
    :: d_step { !crashed[me] && dead(me) && held[me] != 0 -> let_go(me) }
    od
}

proctype Judge() {
    do
    :: d_step { crashed[0] && !dead(0) -> session[0] = DEAD }
    :: d_step { crashed[1] && !dead(1) -> session[1] = DEAD }
    od
}

proctype Finalizer() {
    do
#ifndef M_UNWANTED_NOT_FINALIZED
    :: d_step { is_session(row.owner) && dead(row.owner) && row.desired != RUNNING -> apply_park() }
#endif
#ifdef M_SWEPT_ONLY_ONCE
    :: d_step { dead(0) && !swept[0] && row.owner != 0 -> swept[0] = true }
    :: d_step { dead(1) && !swept[1] && row.owner != 1 -> swept[1] = true }
#endif
    :: false
    od
}

/* The old owner of a hand-over. */
proctype Giver(byte me) {
    do
    :: d_step { up(me) && owns(me, held[me]) && row.desired == RUNNING && !busy(me) && nonces < NONCES ->
        nonces++; offered_nonce[me] = nonces; apply_offer(me + 1, held[me], nonces, row.generation) }
    :: d_step { up(me) && owns(me, held[me]) && !busy(me) && row.next.ready && row.next.nonce == offered_nonce[me] && !dead(me + 1) ->
        transferring[me] = true }
    :: d_step { up(me) && transferring[me] ->
        transferring[me] = false;
        if
        :: may_transfer(me, held[me], offered_nonce[me]) -> apply_transfer(0); let_go(me)
        :: else ->
            if
            :: owns(me, held[me]) ->
#ifdef M_REFUSED_TRANSFER_IS_KEPT
                transferring[me] = true
#else
                regranting[me] = true
#endif
            :: else -> let_go(me)
            fi
        fi }
    :: d_step { up(me) && regranting[me] ->
        regranting[me] = false; offered_nonce[me] = 0;
        if
        :: may_regrant(me, held[me]) -> apply_regrant(); held[me] = row.epoch
        :: row.owner == me && row.epoch == held[me] + 1 -> held[me] = row.epoch
        :: else -> let_go(me)
        fi }
    :: d_step { up(me) && owns(me, held[me]) && row.desired == RUNNING && !busy(me) && !released -> released = true; releasing[me] = true }
    :: d_step { up(me) && releasing[me] ->
        if
        :: may_release(me, held[me]) -> apply_release(0, false); let_go(me)
        :: owns(me, held[me]) && row.desired != RUNNING -> apply_park(); let_go(me)
        :: else -> let_go(me)
        fi }
    od
}

/* The standby of a hand-over. */
proctype Taker(byte me) {
    do
    :: d_step { up(me) && held[me] == 0 && row.next.nonce != 0 && row.next.session == me && standby[me] != row.next.nonce ->
        standby[me] = row.next.nonce }
    :: d_step { up(me) && standby[me] != 0 && !row.next.ready && may_answer(me - 1, row.next.for_epoch, me, standby[me]) -> apply_ready() }
    :: d_step { up(me) && standby[me] != 0 && row.next.nonce != standby[me] && row.owner != me -> standby[me] = 0 }
    od
}

/* Writes land without an answer, late, or never; a finite number of times. */
proctype Network(byte s) {
    do
    :: d_step { losses < LOSSES && claim_epoch[s] != 0 && may_claim(claim_prev[s], claim_epoch[s]) ->
        losses++; apply_claim(s); claim_epoch[s] = 0; claim_prev[s] = 0 }
    :: d_step { losses < LOSSES && claim_epoch[s] != 0 -> losses++; claim_epoch[s] = 0; claim_prev[s] = 0 }
    :: d_step { s < 2 && losses < LOSSES && transferring[s] && may_transfer(s, held[s], offered_nonce[s]) ->
        losses++; apply_transfer(0) }
    :: d_step { s < 2 && losses < LOSSES && regranting[s] && may_regrant(s, held[s]) -> losses++; apply_regrant() }
    :: d_step { s < 2 && losses < LOSSES && releasing[s] && may_release(s, held[s]) -> losses++; apply_release(0, false) }
    od
}

proctype Faults() {
    do
    :: d_step { !crashed[0] -> crashed[0] = true }
    :: d_step { !crashed[1] -> crashed[1] = true }
    :: d_step { !crashed[1] && !dead(1) -> session[1] = DEAD }
    :: d_step { row.generation < CHANGES && row.desired == RUNNING -> change_desired(PAUSED) }
    :: d_step { row.generation < CHANGES && row.desired == PAUSED -> change_desired(RUNNING) }
    :: break
    od
}

/* Time goes on when there is nothing left to do: without it a run that gets stuck would end instead of violating. */
proctype Idle() {
    bool tick;
    do
    :: tick = !tick
    od
}

init {
    atomic {
        row.owner = 0; row.epoch = 1; held[0] = 1;
        run Claimer(0); run Claimer(1); run Claimer(2);
        run Auditor(0); run Auditor(1); run Auditor(2);
        run Heart(1);
        run Judge(); run Finalizer();
        run Giver(0); run Giver(1); run Taker(1); run Taker(2);
        run Network(0); run Network(1); run Network(2); run Faults(); run Idle()
    }
}
