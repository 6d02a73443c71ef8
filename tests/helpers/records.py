"""Records of runs that no training has made."""


def run_record(model, seed, **others):
    steps = {"steps": 5, "total_steps": 5, "seconds": 2.5, "finished": True}
    sizes = {"parameters": 1234, "intermediate_size": 32}
    steps["diverged"] = False
    counts = {"asked_by_span": [4, 0, 2, 2], "right_by_span": [4, 0, 1, 0]}
    score = {"loss": 1.5, "accuracy": 0.625, "magnitudes": None}
    return {"model": model, "seed": seed, "draw": seed} | steps | sizes | counts | score | others


def trial_record(model, **others):
    steps = {"steps": 5, "total_steps": 5, "seconds": 2.5, "finished": True}
    chosen = {"settings": {"optimizer.learning_rate": 0.01}, "validation_loss": 1.0}
    return {"model": model, "seed": 1000, "draw": 1000} | steps | chosen | others
