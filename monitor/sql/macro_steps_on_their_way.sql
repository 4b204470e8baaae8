-- Those of `runs_on_their_way` that are of `of_run`. Grain: step. Inputs: runs_on_their_way.
SELECT step FROM runs_on_their_way([of_run], looked_at)
