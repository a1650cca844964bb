"""The API of Confluent's Schema Registry."""
