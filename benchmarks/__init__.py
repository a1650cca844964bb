"""How fast MessageHub is, always as a ratio to a floor or a peer measured in the same run.

`python -m benchmarks` runs every file of `benchmarks/topics/`. To add a row write a topic file there:

    @comparison("what is compared, in a line")
    def anything(bench: Bench) -> None:
        with a_server() as server, a_floor() as floor:
            bench.compare({"ours": ..., "floor": ...}, unit="µs", claims=[at_most(1.15, "ours", "floor")])

where each contender is a function that performs one short repetition and returns one figure.
"""
