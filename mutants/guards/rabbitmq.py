"""The guards of the RabbitMQ store."""

from __future__ import annotations

from mutants.guard import guard

_STORE, _CONSUMER, _PUBLISHER = (f"stores/rabbitmq/{name}.py" for name in ("store", "consumer", "publisher"))
_ENVELOPE, _TOPOLOGY = (f"stores/rabbitmq/{name}.py" for name in ("envelope", "topology"))
_DYING, _SENDING, _RECEIVING = (f"tests/rabbitmq/test_{name}.py::" for name in ("dying", "sending", "receiving"))
_STRANGERS, _WAITING, _KILLED = (f"tests/rabbitmq/test_{name}.py::" for name in ("strangers", "waiting", "killed"))
_FORGED = "tests/rabbitmq/test_forged_bookkeeping.py::"
_ON = f"{_DYING}test_a_message_sent_on_by_its_consumer_is_acknowledged_only_when_the_copy_is_there"
_ELSEWHERE = f"{_DYING}test_a_message_that_has_to_go_elsewhere_is_acknowledged_only_when_it_is_there"

GUARDS = (
    guard(
        "a queue that a policy limits refuses what does not fit, and drops nothing",
        _TOPOLOGY,
        'own = {"x-queue-type": queue_type, "x-overflow": "reject-publish"}',
        'own = {"x-queue-type": queue_type}',
        "tests/rabbitmq/test_limited.py::test_a_dead_letter_that_has_no_room_is_not_lost_nor_is_any_before_it[quorum]",
    ),
    # -- what a stranger says of a message holds up no other ---------------------------------------------------
    guard(
        "a time to live beyond all dates does not stop the queue",
        _ENVELOPE,
        "(message.scheduled_at or message.enqueued_at).timestamp() + message.time_to_live.total_seconds()",
        "((message.scheduled_at or message.enqueued_at) + message.time_to_live).timestamp()",
        f"{_STRANGERS}test_a_time_to_live_beyond_all_dates_holds_up_nobody[80000000000000.0]",
    ),
    guard(
        "a count that is none does not stop the queue",
        _ENVELOPE,
        '_whole(self.headers.pop("x-delivery-count", 0) if counted else 0)',
        'int(self.headers.pop("x-delivery-count", 0))',
        f"{_STRANGERS}test_a_stranger_may_say_anything_about_how_often_it_was_delivered[classic-many]",
    ),
    guard(
        "a classic queue's message is not dead for a count that its sender wrote",
        _ENVELOPE,
        '_whole(self.headers.pop("x-delivery-count", 0) if counted else 0)',
        '_whole(self.headers.pop("x-delivery-count", 0))',
        f"{_STRANGERS}test_a_stranger_may_say_anything_about_how_often_it_was_delivered[classic-4611686018427387904]",
    ),
    # -- the next copy is there before this one is acknowledged ------------------------------------------------
    guard(
        "what is released is stored anew before it is acknowledged",
        _STORE,
        "self._replace(held, self._released(held.delivery))",
        "packed = self._released(held.delivery)\n"
        "                self._consumer.finish(held)\n"
        "                self._publisher.publish([packed])",
        f"{_ON}[release]",
    ),
    guard(
        "a dead letter is stored before its message is acknowledged",
        _STORE,
        "self._replace(held, self._dead(held.delivery, reason, description))",
        "packed = self._dead(held.delivery, reason, description)\n"
        "            self._consumer.finish(held)\n"
        "            self._publisher.publish([packed])",
        f"{_ON}[dead-letter]",
        f"{_DYING}test_a_dead_letter_that_the_broker_refuses_leaves_the_message_with_its_consumer",
    ),
    guard(
        "what is postponed is stored for later before it is acknowledged",
        _STORE,
        "self._replace(held, self._postponed(held.delivery, seconds, attempts))",
        "packed = self._postponed(held.delivery, seconds, attempts)\n"
        "            self._consumer.finish(held)\n"
        "            self._publisher.publish([packed])",
        f"{_ON}[postpone]",
    ),
    guard(
        "what is postponed remembers its attempts",
        _STORE,
        "deliveries=crashes, crashes=crashes, attempts=attempts)",
        "deliveries=crashes, crashes=crashes)",
        f"{_WAITING}test_what_is_postponed_comes_when_it_is_due_with_its_attempts_and_is_no_crash",
    ),
    guard(
        "what is postponed remembers its crashes",
        _STORE,
        "deliveries=crashes, crashes=crashes, attempts=attempts)",
        "deliveries=crashes, crashes=0, attempts=attempts)",
        f"{_KILLED}test_a_message_that_fails_first_and_kills_at_its_next_attempt_is_found",
    ),
    guard(
        "what waits for a retry is in nobody's hand",
        "listener/settlement.py",
        "if self._postpone(delivery, delay) or (",
        "if (",
        f"{_KILLED}test_what_waits_for_a_retry_when_its_listener_is_killed_is_never_dead",
    ),
    guard(
        "a queue for waiting that the broker may still forget takes no message",
        _TOPOLOGY,
        "    _settle(link, delay_name(name, highest))\n",
        "",
        f"{_WAITING}test_queues_whose_maker_died_before_they_could_be_trusted_are_not_trusted_by_the_next",
    ),
    guard(
        "a queue for waiting is there for others only when it can be trusted",
        _TOPOLOGY,
        "        _declare_queue(link, name, level)\n    _settle(link, delay_name(name, highest))\n",
        "        _declare_queue(link, name, level)\n        _declare_exchange(link, name, level)\n"
        "    _settle(link, delay_name(name, highest))\n",
        f"{_WAITING}test_queues_whose_maker_died_before_they_could_be_trusted_are_not_trusted_by_the_next",
    ),
    guard(
        "a queue for waiting that is gone is made anew",
        _PUBLISHER,
        "if self._is_doubtful or not self._has_exchange(",
        "if not self._has_exchange(",
        f"{_WAITING}test_a_queue_for_waiting_that_is_deleted_is_made_anew",
    ),
    guard(
        "what is expired, poison, unreadable, early or to be counted is stored elsewhere before it is acknowledged",
        _STORE,
        "        self._publisher.publish([elsewhere])\n        self._consumer.discard(delivery)\n",
        "        self._consumer.discard(delivery)\n        self._publisher.publish([elsewhere])\n",
        *(f"{_ELSEWHERE}[{way}]" for way in ("expired", "poison", "unreadable", "early", "classic")),
    ),
    guard(
        "what could not go elsewhere is the next again",
        _STORE,
        "                    self._consumer.put_back(delivery)\n",
        "                    assert delivery\n",
        f"{_DYING}test_a_message_whose_way_elsewhere_is_refused_is_the_next_again",
    ),
    guard(
        "what comes back from its consumers too often is dead",
        _STORE,
        "        if crashes >= options.max_deliveries *",
        "        if crashes >= 10**9 *",
        f"{_RECEIVING}test_what_crashes_its_consumers_is_dead_with_that_reason[quorum]",
    ),
    guard(
        "in a classic queue, which counts nothing, the message counts",
        _STORE,
        "if options.queue_type == CLASSIC and delivery.redelivered:",
        "if options.queue_type == CLASSIC and not delivery.tag:",
        f"{_RECEIVING}test_what_crashes_its_consumers_is_dead_with_that_reason[classic]",
    ),
    guard(
        "what arrives early waits on",
        _STORE,
        "if due > now + _EARLY:",
        "if due > now + 10**9:",
        f"{_WAITING}test_a_message_arrives_early_only_to_wait_on",
    ),
    guard(
        "what outlived its time is not handed out",
        _STORE,
        "if expiry is not None and expiry <= now:",
        "if expiry is not None and expiry <= 0:",
        f"{_WAITING}test_what_is_due_for_longer_than_its_time_to_live_is_dead",
    ),
    guard(
        "what cannot be read is kept aside, and not dropped",
        _STORE,
        "elsewhere = self._dead(delivery, contract.UNREADABLE, str(error))",
        "return self._consumer.discard(delivery)",
        f"{_STRANGERS}test_what_cannot_be_read_is_dead_with_its_reason_and_the_next_is_delivered[case0]",
    ),
    # -- sending -----------------------------------------------------------------------------------------------
    guard(
        "what the broker cannot route is not taken for stored",
        _PUBLISHER,
        "packed.properties, mandatory=True)",
        "packed.properties, mandatory=False)",
        f"{_SENDING}test_a_message_the_broker_cannot_route_is_an_error_and_the_queue_is_made_anew",
    ),
    guard(
        "what the broker sent back is not taken for stored",
        _PUBLISHER,
        "            if self._refused or self._returned:\n",
        "            if self._refused:\n",
        f"{_SENDING}test_a_message_the_broker_cannot_route_is_an_error_and_the_queue_is_made_anew",
    ),
    guard(
        "what the broker refused is not taken for stored",
        _PUBLISHER,
        "            if self._refused or self._returned:\n",
        "            if self._returned:\n",
        f"{_SENDING}test_a_message_the_broker_refuses_is_an_error_that_names_the_first",
    ),
    guard(
        "storing waits until the broker has answered for every message",
        _PUBLISHER,
        "        link.run(partial(self._has_answered, len(outgoing)))\n",
        "",
        f"{_SENDING}test_a_message_the_broker_refuses_is_an_error_that_names_the_first",
    ),
    guard(
        "of what was on its way when the connection broke, only what was confirmed is said to be stored",
        _PUBLISHER,
        "if self._confirmed[index] and index not in refused",
        "if index not in refused",
        f"{_SENDING}test_a_broker_that_dies_half_way_is_an_error_that_tells_which_are_stored",
    ),
    guard(
        "a message is written to the broker's disk",
        _ENVELOPE,
        "properties = pika.BasicProperties(delivery_mode=_PERSISTENT, message_id=message.id, type=kind)",
        "properties = pika.BasicProperties(message_id=message.id, type=kind)",
        f"{_SENDING}test_a_message_in_a_classic_queue_is_persistent[store]",
    ),
    guard(
        "a message keeps its id when it goes round",
        _ENVELOPE,
        "message_id=delivery.id if len(delivery.id.encode()) <= _SHORT else None,",
        "message_id=None,",
        f"{_STRANGERS}test_a_message_without_an_id_keeps_the_one_it_got_when_it_is_released",
    ),
    guard(
        "a message that goes round remembers its crashes",
        _ENVELOPE,
        "headers |= {DELIVERIES: deliveries, CRASHES: crashes, ATTEMPTS: attempts}",
        "headers |= {DELIVERIES: deliveries, ATTEMPTS: attempts}",
        f"{_RECEIVING}test_what_crashes_its_consumers_is_dead_with_that_reason[classic]",
    ),
    # -- holding -----------------------------------------------------------------------------------------------
    guard(
        "what came through a connection that is gone is settled by nobody",
        _CONSUMER,
        "if self.link.is_open and self.link.epoch == self._epoch:\n            return\n        for held",
        "if self.link.epoch >= 0:\n            return\n        for held",
        f"{_RECEIVING}test_a_tag_of_a_lost_connection_is_never_sent",
    ),
    guard(
        "what is held too long goes back to the queue",
        _CONSUMER,
        "if held.deadline <= now and not held.busy]",
        "if held.deadline <= 0 and not held.busy]",
        f"{_RECEIVING}test_what_is_held_too_long_goes_back_and_counts",
    ),
    guard(
        "a lease that ran out is a lost one, however its message is named",
        _CONSUMER,
        "        self.take_back_overdue()\n        token = ",
        "        token = ",
        f"{_RECEIVING}test_a_lease_that_ran_out_is_lost_before_anybody_has_looked",
    ),
    guard(
        "acknowledgements in groups name what is settled, and nothing between",
        _CONSUMER,
        "            if tag not in pending:\n                break\n            last = tag\n",
        "            last = max(last, tag) if tag in pending else last\n",
        f"{_RECEIVING}test_acknowledgements_in_any_order_settle_exactly_what_they_name",
    ),
    guard(
        "acknowledgements that wait for their group are sent before the connection ends",
        _CONSUMER,
        "        if self.link.is_open and self.link.epoch == self._epoch:\n            self._send_acknowledged()\n",
        "        self._acknowledged.clear()\n",
        f"{_RECEIVING}test_acknowledgements_in_any_order_settle_exactly_what_they_name",
    ),
    guard(
        "a message is acknowledged once",
        _CONSUMER,
        "        self._forget(held)\n        self.discard(held.delivery)\n",
        "        self.discard(held.delivery)\n",
        f"{_RECEIVING}test_acknowledging_twice_raises",
    ),
    guard(
        "what was sent ahead to an idle consumer goes to another",
        _CONSUMER,
        "            self._give_back(self._arrived)\n            self._arrived.clear()\n",
        "            pass\n",
        f"{_RECEIVING}test_what_was_sent_ahead_to_an_idle_consumer_goes_to_another",
    ),
    guard(
        "a message is sent only to a queue that a broker which is killed does not forget",
        _PUBLISHER,
        "        settle_store(link, self._name, self._queue_type)\n",
        "",
        f"{_SENDING}test_what_was_confirmed_survives_a_killed_broker_however_young_its_queue_is",
    ),
    guard(
        "a queue that is made anew is not trusted for the age of the one before",
        _TOPOLOGY,
        "        link.call(link.channel.exchange_delete, exchange=settled_name(name))\n",
        "        pass\n",
        f"{_SENDING}test_a_queue_that_is_made_anew_is_not_trusted_for_the_age_of_the_one_before[]",
    ),
    guard(
        "what waits for its next try waits by the broker's clock, not by that of whoever had it",
        _STORE,
        "        return envelope.waiting(packed, self.name, seconds)\n",
        "        return envelope.delayed(packed, self.name, time.time() + seconds, time.time())\n",
        f"{_WAITING}test_what_waits_for_its_next_try_waits_no_longer_where_the_clock_of_whoever_had_it_is_wrong"
        "[postponed-3600.0]",
    ),
    guard(
        "no sender gives a message more lives than others have",
        _ENVELOPE,
        "    return max(0, value) if isinstance(value, int) else 0\n",
        "    return value if isinstance(value, int) else 0\n",
        f"{_FORGED}test_what_kills_its_consumer_is_found_whatever_was_said_of_its_crashes[homing-crashes-quorum]",
        f"{_FORGED}test_what_kills_its_consumer_is_found_whatever_was_said_of_its_crashes[x-delivery-count-classic]",
    ),
    guard(
        "a message that may live beyond the last day holds up nobody",
        _ENVELOPE,
        "    return (message.scheduled_at or message.enqueued_at).timestamp() + message.time_to_live.total_seconds()\n",
        "    return ((message.scheduled_at or message.enqueued_at) + message.time_to_live).timestamp()\n",
        f"{_FORGED}test_a_message_that_may_live_beyond_the_last_day_holds_up_nobody[headers0]",
    ),
    guard(
        "properties that nobody can read stop no consumer",
        "stores/rabbitmq/connection.py",
        "            if self._frame_buffer[0] != spec.FRAME_HEADER:\n",
        "            if True:\n",
        f"{_FORGED}test_properties_that_nobody_can_read_stop_no_consumer[1200 levels-1]",
        f"{_FORGED}test_properties_that_nobody_can_read_stop_no_consumer[a time after all times-100]",
    ),
    guard(
        "headers that could not be sent on are not taken over",
        _ENVELOPE,
        "        if is_too_deep(self.headers):",
        "        if False:",
        f"{_FORGED}test_properties_that_nobody_can_read_stop_no_consumer[201 levels-1]",
    ),
    guard(
        "a property that is no text is made one",
        _ENVELOPE,
        'return value.decode(errors="replace") if isinstance(value, bytes) else value',
        "return value  # type: ignore[return-value]",
        f"{_FORGED}test_a_property_that_is_no_text_stops_no_consumer[content_type]",
    ),
)
