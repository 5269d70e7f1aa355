"""The interfaces of etf1/kafka-message-scheduler: environment, REST, counter."""
