"""The embedded bus: the semantics of Service Bus on the SQL store.

Every queue, topic and subscription is a SQL store, and its dead letters are another; the catalog knows which. What is
sent is stored in one transaction. A topic, and a queue that forwards, passes on what is due in its store: the copies
are stored and the original is acknowledged in one transaction, by the sender right after sending and by whoever
receives behind it, so that a process that dies in between holds nothing up.
"""
