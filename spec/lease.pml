/*
 * The two kinds of row and every conditional write of the lease protocol, shared by all models.
 *
 * A write is one indivisible step: DynamoDB applies a conditional update to one item linearizably. Whether, when and
 * how often an attempt reaches the table, and whether its answer comes back, is up to the model that includes this file.
 * Each write is its condition, a macro `may_...`, and its effect, an inline `apply_...`.
 *
 * Abstracted here, for all models:
 * - A heartbeat's sequence number. It is only ever compared as "has it moved since I looked", and it only grows, so the
 *   row keeps no number: whoever remembers one keeps a bit that the next heartbeat to land invalidates (`seq_moved`).
 *   This is exact and lets a session send any number of heartbeats in a finite state space.
 * - The claim's grant nonce. It tells two claims of one session apart; (owner, epoch) of both is the same.
 * - Cursor and status are one thing: data that a session writes under its epoch.
 * - Inboxes, SQS and the index are hints: an action that a hint would trigger may happen at any time, or not.
 */

#ifndef SESSIONS
#define SESSIONS 3
#endif

/* Values of `owner` beside a session's number. */
#define NOBODY 13
#define FREE   14
#define PARKED 15

/* Values of a session row's `state`; DEAD_EXIT is DEAD with dead_by = exit. */
#define LIVE      0
#define DEAD      1
#define DEAD_EXIT 2
#define ABSENT    3

/* Values of `desired`. */
#define RUNNING 0
#define PAUSED  1
#define STOPPED 2

typedef OfferAttribute {
    byte nonce;      /* 0: there is no offer */
    byte session;
    byte for_epoch;
    byte generation;
    bool ready
};

typedef ConnectionRow {
    byte owner;
    byte epoch;
    byte desired;
    byte generation;
    byte handoff;    /* what the last transfer or release left: number of the last message that the old owner emitted */
    bool handed;     /* it did leave that, and nobody has had it since but the present owner */
    OfferAttribute next
};

byte session[SESSIONS];
ConnectionRow row;

#define dead(s) (session[s] == DEAD || session[s] == DEAD_EXIT)
#define is_session(o) ((o) < SESSIONS)
#define owns(me, e) (row.owner == (me) && row.epoch == (e))

inline clear_next() {
    row.next.nonce = 0; row.next.session = 0; row.next.for_epoch = 0; row.next.generation = 0; row.next.ready = false
}

/* Every new owner passes here, except a regrant, which is its own new owner. */
inline new_owner(to, last, is_handed) {
    row.handed = is_handed; row.handoff = last;
    row.owner = to;
#ifndef M_EPOCH_NOT_RAISED
    row.epoch++;
#endif
    clear_next()
}

inline no_owner(key) {
    row.owner = key; row.handed = false; row.handoff = 0;
    clear_next()
}

/* claim: prev is FREE or a session that is dead, or absent for W; that it is so is for the claimer to have read. */
#ifndef M_CLAIM_IGNORES_DESIRED
#define may_claim(prev, e) (row.owner == (prev) && row.epoch == (e) && row.desired == RUNNING)
#else
#define may_claim(prev, e) (row.owner == (prev) && row.epoch == (e))
#endif
inline apply_claim(me) {
    assert(row.desired == RUNNING);                 /* nobody comes to run what is not wanted */
#ifndef M_CLAIM_KEEPS_AN_OLD_HANDOFF
    if
    :: row.owner != FREE -> row.handed = false; row.handoff = 0
    :: else
    fi;
#endif
    new_owner(me, row.handoff, row.handed)
}

/* checkpoint, status */
#ifndef M_CHECKPOINT_WITHOUT_EPOCH
#define may_checkpoint(me, e) owns(me, e)
#else
#define may_checkpoint(me, e) (row.owner == (me))
#endif

#define may_release(me, e) (owns(me, e) && row.desired == RUNNING)
inline apply_release(last, leaves) { no_owner(FREE); row.handed = leaves; row.handoff = last }

/* park, stop: by the owner, or by a sweeper for a dead one. */
#ifndef M_PARK_IGNORES_GENERATION
#define may_park(prev, e, seen) (owns(prev, e) && row.desired != RUNNING && row.generation == (seen))
#else
#define may_park(prev, e, seen) owns(prev, e)
#endif
inline apply_park() {
    assert(row.desired != RUNNING);                 /* what is wanted is not put aside */
    no_owner((row.desired == STOPPED -> NOBODY : PARKED))
}

/* The API's change: one step stands for its read and its conditional write, which it repeats until it fits. */
inline change_desired(wish) {
    row.generation++;
    row.desired = wish;
    if
    :: row.owner == PARKED && wish == RUNNING -> row.owner = FREE
    :: row.owner == FREE && wish == PAUSED -> row.owner = PARKED
    :: row.owner >= FREE && wish == STOPPED -> row.owner = NOBODY
    :: else
    fi
}

#define may_offer(me, e, seen) (owns(me, e) && (row.next.nonce == 0 || row.next.nonce == (seen)))
inline apply_offer(to, e, offer_nonce, seen_generation) {
    row.next.session = to; row.next.nonce = offer_nonce; row.next.for_epoch = e;
    row.next.generation = seen_generation; row.next.ready = false
}

/* ready, decline */
#define offered(from, e, me) (owns(from, e) && row.next.nonce != 0 && row.next.session == (me) && row.next.for_epoch == (e))
#ifndef M_READY_WITHOUT_NONCE
#define may_answer(from, e, me, offer_nonce) (offered(from, e, me) && row.next.nonce == (offer_nonce))
#else
#define may_answer(from, e, me, offer_nonce) offered(from, e, me)
#endif
inline apply_ready() { row.next.ready = true }
inline apply_decline() { clear_next() }

#define may_transfer(me, e, offer_nonce) \
    (owns(me, e) && row.next.nonce == (offer_nonce) && row.next.ready && row.generation == row.next.generation)
inline apply_transfer(last) { new_owner(row.next.session, last, true) }

#define may_regrant(me, e) owns(me, e)
inline apply_regrant() {
#ifndef M_REGRANT_KEEPS_EPOCH
    row.epoch++; row.handed = false; row.handoff = 0;
#endif
    clear_next()
}
