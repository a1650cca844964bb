"""The floor: a ROUTER that sends every request back, as lean as Python allows and safe from misframed peers.

Run as `python -m benchmarks.echo_broker ENDPOINT`. It asks RCVMORE after each frame, because a broker that
assumes three frames dies of the first peer that sends two.
"""

import sys

import zmq

MOST_FRAMES = 8


def main(endpoint: str) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.setsockopt(zmq.SNDHWM, 0)  # with 512 requests in flight the default drops a reply now and then
    router.bind(endpoint)
    recv, send, rcvmore = router.recv, router.send, zmq.RCVMORE
    more = router.getsockopt
    while True:
        frames = [recv()]
        while more(rcvmore):
            frames.append(recv())
        if not 2 <= len(frames) <= MOST_FRAMES:
            continue
        for frame in frames[:-1]:
            send(frame, zmq.SNDMORE)
        send(frames[-1])


if __name__ == "__main__":
    main(sys.argv[1])
