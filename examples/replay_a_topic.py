"""A topic that keeps its history: who comes late reads all of it, and then what is published next.

python examples/replay_a_topic.py
"""

from messagehub import Keep, MessageHub, embedded_broker


def main() -> None:
    with embedded_broker() as endpoint, MessageHub(endpoint=endpoint) as hub:
        orders = hub.topic("orders.eu", keep=Keep(messages=1000, seconds=86400))
        orders.publish({"id": 1})
        orders.publish_all([{"id": 2}, {"id": 3}])
        with hub.subscribe("orders.>", since=0) as late:
            orders.publish({"id": 4}, headers={"urgent": True})
            for _ in range(4):
                message = late.receive(timeout=10)
                print(message.offset, message.payload, message.headers)
            position = late.positions
        orders.publish({"id": 5})
        with hub.subscribe("orders.>", since=position) as again:
            print("went on with", again.receive(timeout=10).payload)


if __name__ == "__main__":
    main()
