"""The embedded bus: the semantics of Service Bus on the SQL store.

Every queue, topic and subscription is a SQL store, and its dead letters are another; the catalog knows which. What is
sent is stored in one transaction. A topic, and a queue that forwards, passes on due messages: in one transaction the
 copies are stored and the original is acknowledged. The sender does so right after sending, and so does every receiver
 of the target, so that a sender that dies in between delays no message.
"""
