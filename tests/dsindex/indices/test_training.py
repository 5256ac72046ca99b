"""The samples that a job requests, by the rules of Megatron's releases.

The numbers are those of the releases' own functions; tests/peers/test_releases.py compares many more.
"""

import pytest

from dsindex.index.needed_caches import TrainingLength, phases_of_training, samples_for_training

RAMP = {"train_samples": 3000, "rampup_batch_size": (2, 2, 999), "eval_interval": 10, "eval_iters": 1}
STEPS = {"train_samples": 3000, "step_batch_size_schedule": "0:4 3000:6 9K:16", "sequence_length": 16}


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ({"train_iters": 1000, "eval_interval": 100, "eval_iters": 10}, (8000, 880, 80)),
        ({"train_iters": 1000, "eval_interval": 3000, "eval_iters": 10}, (8000, 80, 80)),
        ({"train_samples": 8007, "eval_interval": 100, "eval_iters": 10}, (8007, 880, 80)),
        ({"train_iters": 5, "eval_iters": 0, "full_validation": True}, (40, None, 0)),
        ({"train_iters": 100, "eval_interval": 10, "skip_train": True, "eval_iters": 3}, (800, 24, 24)),
        ({"train_iters": 100, "eval_interval": 10, "start_eval_at_iter": 35, "eval_iters": 1}, (800, 64, 8)),
        ({"train_iters": 100, "eval_interval": 10, "start_eval_at_iter": 999, "eval_iters": 1}, (800, 0, 8)),
        ({"train_iters": 100, "eval_interval": 10, "eval_global_batch_size": 3, "eval_iters": 1}, (800, 33, 3)),
        ({**RAMP, "release": "0.17"}, (3000, 448, 8)),
        ({**RAMP, "release": "0.18"}, (3000, 304, 8)),
        ({**STEPS, "eval_interval": 10, "eval_iters": 1}, (3000, 216, 8)),
    ],
)
def test_samples_of_a_job_follow_megatrons_rule(length, expected):
    assert samples_for_training(TrainingLength(global_batch_size=8, **length)) == expected


def test_each_phase_has_samples_of_its_own():
    length = TrainingLength(
        train_samples=1000, global_batch_size=8, eval_interval=10, phase_transition_iterations=(50, 100, 500)
    )
    assert phases_of_training(length) == (400, 400, 200)
    assert samples_for_training(length)[0] == 400


def test_huge_ramp_is_counted_without_a_step_for_each_iteration():
    job = {"train_samples": 10**15, "global_batch_size": 4, "rampup_batch_size": (1, 1, 10**14)}
    job["release"] = "0.17"
    assert samples_for_training(TrainingLength(**job, full_validation=True)) == (10**15, None, 400)
    valid = TrainingLength(**job, eval_interval=1)
    iterations = 33333333333334 + 16666666666667 + 11111111111111 + (9 * 10**14 - 1) // 4
    assert samples_for_training(valid)[1] == (iterations + 1) * 400


@pytest.mark.parametrize(
    ("length", "message"),
    [
        ({}, "either"),
        ({"train_iters": 1, "train_samples": 1}, "either"),
        ({"train_iters": 1, "eval_interval": None}, "--eval-interval"),
        ({"train_iters": 1, "start_eval_at_iter": 0, "release": "0.17"}, r"Megatron 0\.17 has no such flag"),
        ({"train_iters": 1, "phase_transition_iterations": (1,)}, "stops at --train-iters"),
        ({"train_samples": 1, "rampup_batch_size": (1, 1, 1)}, "needs --megatron-release"),
        ({**RAMP, "release": "0.16", "rampup_batch_size": (8, 1, 9)}, "smaller than --global-batch-size 8"),
        ({**RAMP, "release": "0.16", "rampup_batch_size": (1, 2, 9)}, "multiple of the increment"),
        ({**RAMP, "release": "0.16", "rampup_batch_size": (1, 1, 0)}, "samples above 0"),
        ({**RAMP, "release": "0.16", "train_samples": None, "train_iters": 3}, "needs --train-samples with it"),
        ({**STEPS, "step_batch_size_schedule": "0:4 7"}, "expected THRESHOLD:SIZE, .* got '7'"),
        ({**STEPS, "step_batch_size_schedule": "5000:4"}, "the first one 0"),
        ({**STEPS, "step_batch_size_schedule": "0:4 1:5"}, "different thresholds"),
        ({**STEPS, "step_batch_size_schedule": "0:0"}, "sizes above 0"),
        ({**STEPS, "step_batch_size_schedule": "0:1e9"}, "expected a number such as 768 or 250B, got '1e9'"),
        ({"train_samples": 1, "step_batch_size_schedule": ""}, "the first one 0"),
    ],
)
def test_incomplete_length_or_one_at_which_megatron_stops_is_refused(length, message):
    with pytest.raises(ValueError, match=message):
        samples_for_training(TrainingLength(**{"global_batch_size": 8, "eval_interval": 1, **length}))
