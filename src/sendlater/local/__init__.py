"""The servers and tools of one machine: Java, jars, a Redis and a Kafka of our own."""
