"""Records of runs that no training has made."""

STEPS = {"steps": 5, "total_steps": 5, "seconds": 2.5, "finished": True}


def run_record(model, seed, **others):
    sizes = {"parameters": 1234, "intermediate_size": 32, "diverged": False}
    counts = {"asked_by_span": [4, 0, 2, 2], "right_by_span": [4, 0, 1, 0]}
    score = {"loss": 1.5, "accuracy": 0.625, "magnitudes": None}
    return {"model": model, "seed": seed, "draw": seed} | STEPS | sizes | counts | score | others


def trial_record(model, **others):
    chosen = {"settings": {"optimizer.learning_rate": 0.01}, "validation_loss": 1.0}
    return {"model": model, "seed": 1000, "draw": 1000} | STEPS | chosen | others
