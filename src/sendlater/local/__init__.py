"""Servers and tools on this machine: Java, jars, embedded Redis and Kafka servers."""
