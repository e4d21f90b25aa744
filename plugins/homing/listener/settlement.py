"""OutcomeWriter: carries the outcome of an attempt to the stores.

The next durable copy of a message always exists before this one is finished.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from homing.errors import LeaseLostError, MissingConnectionError, NotInFlightError, StoreUnavailableError
from homing.failure import (
    FAILURE_STORE,
    FAILURE_TYPE,
    ErrorInfo,
    dead_letter_id,
    error_info,
    is_record,
    letter_headers,
    ref_of,
)
from homing.ids import new_id
from homing.invocation.error_info import describe, sign_of
from homing.listener import metrics
from homing.listener.config import ListenerConfig, name_of
from homing.listener.delivery import Delivery
from homing.listener.in_flight import InFlight
from homing.listener.partial_progress import Progress
from homing.listener.service import Service
from homing.message import DEAD, Message, MessageRef
from homing.store import (
    ATTEMPTS,
    BROWSE,
    CLAIM,
    CRASHED,
    DEAD_LETTER,
    FULL_MESSAGE,
    RESCHEDULE,
    SCHEDULE,
    SESSIONS,
    Store,
)

log = logging.getLogger(__name__)

#: So often the listener tells the store the same outcome again when it does not answer.
MAX_SETTLINGS = 10

_PAGE = 100  # dead messages looked at at once


class OutcomeWriter:
    """Acknowledges, releases, drops and dead-letters for one run of a listener. Thread-safe."""

    def __init__(
        self, store: Store, config: ListenerConfig, service: Service, in_flight: InFlight, counts: metrics.Counts
    ) -> None:
        self._store = store
        self._store_name = name_of(store)
        self._config = config
        self._policy = config.policy
        self._service = service.name
        self._takes_records = service.takes_records
        self._records_of = service.records_of or self._store_name
        self._in_flight = in_flight
        self._counts = counts

    def succeeded(self, deliveries: Sequence[Delivery]) -> None:
        """These were handled."""
        if len(deliveries) > 1 and CLAIM in self._store.features:
            try:
                self._store.settle([delivery.message for delivery in deliveries])
            except Exception as error:  # noqa: BLE001 - all or none: so it was none, and each is tried by itself
                log.debug("settling %d messages at once failed: %s", len(deliveries), sign_of(error))
            else:
                for delivery in deliveries:
                    self._done(delivery, metrics.PROCESSED)
                return
        for delivery in deliveries:
            self.settle(delivery, True, metrics.PROCESSED)

    def failed(self, delivery: Delivery, error: BaseException) -> None:
        """An attempt on this failed: tries again later, or gives it up."""
        cause = error
        if isinstance(error, Progress):
            delivery.content = error.content
            delivery.has_moved = delivery.has_moved or error.durable
            delivery.is_record, delivery.successor = error.content_type == FAILURE_TYPE, error.id
            cause = error.__cause__ or error
        if delivery.lost:
            log.error(
                "message %s of store %s failed in %s after its lease was lost: %s",
                *(delivery.id, self._store_name, self._service, sign_of(cause)),
            )
            return
        if isinstance(cause, MissingConnectionError):
            log.error("message %s stays in store %s: %s", delivery.id, self._store_name, cause)
            self._let_go(delivery)
            return
        decision = self._policy.decide(cause, delivery.attempts, key=delivery.id)
        if not decision.retry:
            self._give_up(delivery, cause)
            return
        log.warning(
            "message %s of store %s failed in %s at attempt %d and is tried again in %.3g s: %s",
            *(delivery.id, self._store_name, self._service, delivery.attempts, decision.delay, sign_of(cause)),
        )
        self._retry(delivery, decision.delay)

    def _retry(self, delivery: Delivery, delay: float) -> None:
        """Sees to it that the next attempt comes. A broker keeps this one till then; other stores that can do so when
        many wait already."""
        if delivery.has_moved and self._supersede(delivery, delay, delivery.attempts):
            return
        self._counts.add(metrics.RETRIED)
        if self._postpone(delivery, delay) or (self._in_flight.is_full and self._leave_to_store(delivery, delay)):
            return
        self.keep(delivery, delay)

    def keep(self, delivery: Delivery, delay: float) -> None:
        """Keeps it for its next attempt, or releases it where the run does not wait for that any more."""
        # Before it is available again: if this process dies meanwhile, no waiting message is to blame.
        self._rest(delivery)
        if not self._in_flight.again(delivery, delay):
            self._let_go(delivery)

    def take_in_hand(self, delivery: Delivery) -> bool:
        """Whether a handler may have it now: the store must know before, or a message that kills would not be found."""
        if not delivery.is_resting:
            return True
        try:
            self._store.rest(delivery.message, resting=False)
        except (LeaseLostError, NotInFlightError) as error:
            log.warning(
                "message %s of store %s is not handled, its lease is lost: %s",
                delivery.id,
                self._store_name,
                sign_of(error),
            )
            self._in_flight.finished(delivery)
            return False
        except Exception as error:  # noqa: BLE001 - a store that is away must not end the listener
            log.warning("message %s waits for store %s: %s", delivery.id, self._store_name, sign_of(error))
            self._in_flight.settle_again(delivery, self._config.polling_seconds)
            return False
        delivery.is_resting = False
        return True

    def _rest(self, delivery: Delivery) -> None:
        try:
            self._store.rest(delivery.message, resting=True)
            delivery.is_resting = True
        except Exception as error:  # noqa: BLE001 - then its lease counts as before
            log.debug("message %s: the store was not told that it waits: %s", delivery.id, sign_of(error))

    def _wake(self, delivery: Delivery) -> None:
        """Before it goes back: what was forgiven in advance is not to be forgiven twice."""
        if delivery.is_resting:
            with suppress(Exception):
                self._store.rest(delivery.message, resting=False)
            delivery.is_resting = False

    def settle(self, delivery: Delivery, success: bool, outcome: str) -> None:
        """Acknowledges or releases; when the store does not answer, the listener tries again later."""
        self._wake(delivery)
        try:
            self._store.acknowledge(delivery.message, success)
        except (LeaseLostError, NotInFlightError) as error:
            self._lost(delivery, outcome, error)
        except Exception as error:  # noqa: BLE001 - a store that is away must not end the listener
            delivery.verdict = (success, outcome)
            delivery.settlings += 1
            if delivery.settlings >= MAX_SETTLINGS or delivery.lost:
                self._lost(delivery, outcome, error)
            else:
                log.warning(
                    "message %s: store %s did not take the outcome %s, trying again: %s",
                    *(delivery.id, self._store_name, outcome, sign_of(error)),
                )
                self._in_flight.settle_again(delivery, self._config.polling_seconds)
        else:
            self._done(delivery, outcome)

    def release(self, delivery: Delivery) -> None:
        """Gives back what was taken and is in no handler's hand; where that fails, its lease runs out."""
        self._wake(delivery)
        try:
            self._store.acknowledge(delivery.message, success=False)
        except Exception as error:  # noqa: BLE001 - the lease does the same, later
            log.warning("message %s could not be released: %s", delivery.id, sign_of(error))
        self._in_flight.finished(delivery)

    # -- giving up ---------------------------------------------------------------------------------------------

    def _give_up(self, delivery: Delivery, error: BaseException) -> None:
        config, name = self._config, self._store_name
        reason = sign_of(error)
        what = f"message {delivery.id} of store {name} failed in {self._service} after {delivery.attempts} attempts"
        if config.dead_letter_store is not None:
            dead = config.dead_letter_store
            try:
                self._store_dead(dead, delivery, describe(error, self._service, delivery.attempts))
            except Exception as trouble:  # noqa: BLE001 - whatever it is, the message must not be acknowledged
                log.error(  # noqa: TRY400 - both errors are in the text
                    "%s (%s), and dead-letter store %s did not take it (%s): it is released",
                    *(what, reason, name_of(dead), sign_of(trouble)),
                )
                self._let_go(delivery)
            else:
                log.error("%s and went to dead-letter store %s: %s", what, name_of(dead), reason)
                self.settle(delivery, True, metrics.DEAD_LETTERED)
        elif config.drop_message_after_max_retries:
            log.error("%s and is dropped: %s", what, reason)
            self.settle(delivery, True, metrics.DROPPED)
        else:
            log.error("%s and is released: %s", what, reason)
            self._let_go(delivery)

    def _let_go(self, delivery: Delivery) -> None:
        """Releases it. It may be retrieved again at once, and then has to wait until the next poll is due."""
        wait = self._config.polling_seconds
        if not (delivery.has_moved and self._supersede(delivery, wait, 0)):
            self._in_flight.remember(delivery.id, wait)
            self.settle(delivery, False, metrics.RELEASED)

    def _postpone(self, delivery: Delivery, delay: float) -> bool:
        """Puts it back until its next attempt; False where it has to wait here, as what was done of it is known here
        only, or the store did not take it."""
        if delivery.has_moved:
            return False
        try:
            if not self._store.postpone(delivery.message, delay, attempts=delivery.attempts):
                return False
        except (LeaseLostError, NotInFlightError) as error:
            log.warning(
                "message %s of store %s was not postponed, its lease is lost: %s",
                delivery.id,
                self._store_name,
                sign_of(error),
            )
            self._in_flight.remember(delivery.id, delay, delivery.attempts, isolated=delivery.isolated)
        except Exception as error:  # noqa: BLE001 - a store that is away must not end the listener
            log.warning("message %s cannot wait in store %s: %s", delivery.id, self._store_name, sign_of(error))
            return False
        else:
            if delivery.isolated:
                self._in_flight.remember(delivery.id, delay, isolated=True)
        self._in_flight.finished(delivery)
        self._in_flight.expect(delay)
        return True

    def _leave_to_store(self, delivery: Delivery, delay: float) -> bool:
        """Releases it, to be due again when its next attempt is; False where the store cannot do that.

        Nor is it done within a session, whose order it would change.
        """
        features, in_session = self._store.features, delivery.message.session_id is not None
        if RESCHEDULE not in features or (in_session and SESSIONS in features):
            return False
        self._in_flight.remember(delivery.id, delay, delivery.attempts, isolated=delivery.isolated)
        try:
            self._store.acknowledge(delivery.message, success=False)
            self._in_flight.finished(delivery)
            self._store.reschedule([delivery.id], _from_now(delay))
        except Exception as error:  # noqa: BLE001 - what was released comes back at once, and then waits here
            log.warning("message %s cannot wait in store %s: %s", delivery.id, self._store_name, sign_of(error))
        return delivery.lost

    def _supersede(self, delivery: Delivery, delay: float, attempts: int) -> bool:
        """Puts what is left to do into the store as a message of its own, then finishes this one."""
        headers = {key: value for key, value in delivery.message.headers.items() if key != ATTEMPTS}
        if attempts:
            headers[ATTEMPTS] = attempts
        successor = delivery.successor or new_id()
        self._in_flight.remember(successor, delay)
        try:
            # Other listeners are to wait as well.
            due = _from_now(delay) if attempts and SCHEDULE in self._store.features else None
            _store_whole(
                self._store,
                replace(delivery.message, id=successor, content=delivery.content, headers=headers, scheduled_at=due),
            )
        except Exception as error:  # noqa: BLE001 - then it is known here only, which is enough unless we crash
            log.warning("the progress of message %s could not be stored: %s", delivery.id, sign_of(error))
            return False
        self.settle(delivery, True, metrics.RETRIED if attempts else metrics.RELEASED)
        return True

    def bring_dead(self) -> None:
        """Moves what the store gave up, because its consumers died, to the dead-letter store: copied there before
        it is finished here. What is refused there, because it is too large for instance, stays and holds up no other.
        """
        dead, page, after = self._config.dead_letter_store, list[Message](), 0
        if dead is None or not {BROWSE, DEAD_LETTER} <= self._store.features:
            return
        while page := self._store.browse(_PAGE, state=DEAD, after=after):
            after = page[-1].sequence_number or after + 1
            for message in page:
                if message.dead_letter_reason != CRASHED:
                    continue  # dead for another reason, or unreadable
                why = message.dead_letter_description or CRASHED
                error = error_info(CRASHED, why, self._service, attempt=message.delivery_count)
                try:
                    self._store_dead(dead, Delivery(message), error)
                except StoreUnavailableError:
                    raise
                except Exception as trouble:  # noqa: BLE001 - of many kinds, as stores are
                    log.error(  # noqa: TRY400 - its text may quote the message
                        "message %s of store %s stays there, dead: dead-letter store %s did not take it: %s",
                        *(message.id, self._store_name, name_of(dead), sign_of(trouble)),
                    )
                    continue
                self._store.finish_dead([message.id])
                self._counts.add(metrics.DEAD_LETTERED)
                log.error("message %s of store %s went to dead-letter store %s: %s", message.id, self._store_name,
                          name_of(dead), why)  # fmt: skip

    def _store_dead(self, dead: Store, delivery: Delivery, error: ErrorInfo) -> None:
        """Stores its dead letter: what was given up as it was, or the failure record that a chain made of it."""
        message, headers = delivery.message, {k: v for k, v in delivery.message.headers.items() if k != ATTEMPTS}
        kind = None if message.content_type == FAILURE_TYPE else message.content_type  # a producer's word
        content = delivery.content
        if delivery.is_record or (self._takes_records and is_record(content)):
            kind = FAILURE_TYPE
            content = {**content, **self._taken_in(delivery, content)}
        written = replace(message, content=content, content_type=kind, headers=headers)
        letter = replace(
            written,
            id=self._dead_id(delivery, written),
            headers=letter_headers(written, error, self._store_name),
            scheduled_at=None,
            time_to_live=None,
            dead_letter_reason=error["type"],
            dead_letter_description=error["message"],
            dead_letter_source=self._store_name,
        )
        try:
            _store_whole(dead, letter)
        except StoreUnavailableError:
            raise
        except Exception as trouble:
            if FULL_MESSAGE not in dead.features:
                raise
            # What does not fit there is in the headers too, as far as it is useful.
            log.warning("dead letter of message %s is stored without its properties: %s", delivery.id, sign_of(trouble))
            dead.store(letter.content, id=letter.id, headers=letter.headers)

    def _taken_in(self, delivery: Delivery, record: Mapping[str, Any]) -> dict[str, Any]:
        """Which message it is, for its record, where that can be told.

        A record that a person moved here is a separate failure: the dead letter it was before may still have
        the id, and a store takes each id once.
        """
        known, number = ref_of(record), delivery.message.sequence_number
        if not known.table_id:
            identity = self._store.identity
            return {"taken_in": [identity, number]} if identity and number is not None else {}
        if delivery.id == known.name:
            return {}
        return {"taken_in": [known.table_id, uuid.UUID(self._place_id(delivery)).int >> 65]}

    def _dead_id(self, delivery: Delivery, written: Message) -> str:
        """The same for the same message, so that a crash in between makes no second copy; never that of another one.

        A store that does not number its messages may hold two of one id, and the dead-letter store would take them for
        the same: then every copy has an id of its own.
        """
        number = written.sequence_number
        if written.content_type == FAILURE_TYPE:
            ref, store = ref_of(written.content), self._records_of.removesuffix(FAILURE_STORE)
        else:
            ref, store = MessageRef(self._store.identity if number else "", number or 0, written.id), self._store_name
        return dead_letter_id(store, ref.name) if ref.table_id else self._place_id(delivery)

    def _place_id(self, delivery: Delivery) -> str:
        """An id for this entry of the store alone: the same one each time, where the store numbers its messages."""
        number = delivery.message.sequence_number
        if number is None or delivery.has_moved:
            return new_id()
        place = f"{self._store_name}/{delivery.id}/{number}"
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{place}/{delivery.stored_at}"))

    # -- the end -----------------------------------------------------------------------------------------------

    def _done(self, delivery: Delivery, outcome: str) -> None:
        self._counts.add(outcome)
        self._in_flight.finished(delivery)
        log.debug("message %s of store %s: %s", delivery.id, self._store_name, outcome)

    def _lost(self, delivery: Delivery, outcome: str, error: BaseException) -> None:
        log.error(
            "message %s of store %s was %s by %s, but the store was not told and will deliver it again: %s",
            *(delivery.id, self._store_name, outcome, self._service, sign_of(error)),
        )
        self._counts.add(metrics.LOST_LEASES)
        self._in_flight.finished(delivery)


def _store_whole(store: Store, message: Message) -> None:
    """With everything that is written on it, where the store takes that; else content, id and headers."""
    if FULL_MESSAGE in store.features:
        store.store(message)
    else:
        store.store(message.content, id=message.id, headers=message.headers)


def _from_now(seconds: float) -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=seconds)
