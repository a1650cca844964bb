"""Payloads of messages, requests and replies: bytes, JSON and Arrow, in the frame or in shared memory."""
