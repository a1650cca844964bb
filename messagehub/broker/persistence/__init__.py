"""Between the loop and the store: replies that wait for a commit, and the state that is restored at the start."""
