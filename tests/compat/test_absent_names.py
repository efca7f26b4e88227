"""What programs are told that use a name, module or argument which dray does not have."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys

import pytest

import dray
from dray.compat.arguments import checked_arguments
from dray.compat.attributes import AbsentMember
from dray.errors import (
    AbsentArgumentError,
    AbsentError,
    AbsentImportError,
    AbsentModuleError,
    AbsentNameError,
    ConfigError,
)


def refusal(code: str) -> AbsentError:
    with pytest.raises(AbsentError) as caught:
        exec(code, {"dray": dray})
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("import dray.tune", AbsentModuleError),
        ("import dray.tune.schedulers", AbsentModuleError),
        ("from dray.tune import Tuner", AbsentModuleError),
        ("from dray import tune", AbsentImportError),
        ("dray.tune.Tuner()", AbsentNameError),
    ],
)
def test_a_module_of_rays_says_what_to_use_instead(code: str, kind: type[AbsentError]) -> None:
    error = refusal(code)
    assert type(error) is kind
    assert str(error).startswith("dray has no tune: ")
    assert (error.owner, error.absent) == ("dray", "tune")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("from dray.experimental import internal_kv", "internal to Ray"),
        ("dray.worker.global_worker", "internal to Ray"),
        ("dray.services.get_node_ip_address()", "internal to Ray"),
        ("dray.state.cluster_resources()", "dray.util.state"),
    ],
)
def test_what_programs_for_older_rays_use_is_not_taken_for_a_typing_error(
    code: str, hint: str
) -> None:
    message = str(refusal(code))
    assert hint in message
    assert "did you mean" not in message


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import dray.exceptons", "No module named 'dray.exceptons'; did you mean exceptions?"),
        (
            "from dray import exceptons",
            "cannot import name 'exceptons' from 'dray'; did you mean exceptions?",
        ),
        ("dray.shutdwn()", "module 'dray' has no attribute 'shutdwn'; did you mean shutdown?"),
        (
            "from dray.exceptions import RayTaskErr",
            "cannot import name 'RayTaskErr' from 'dray.exceptions'; did you mean RayTaskError?",
        ),
        (
            "import dray.train.checkpoint; dray.train.Checkpnt",
            "module 'dray.train' has no attribute 'Checkpnt'; did you mean Checkpoint?",
        ),
        (
            "import dray.train; dray.train.TorchTrainer",
            "dray.train has no TorchTrainer: it is in dray.train.torch",
        ),
        (
            "from dray.train import XGBoostTrainer",
            "dray.train has no XGBoostTrainer: it is in dray.train.xgboost",
        ),
        ("import dray.qqq", "No module named 'dray.qqq'"),
        ("dray.qqq", "module 'dray' has no attribute 'qqq'"),
    ],
)
def test_a_typo_is_told_as_python_does_with_what_is_near(code: str, text: str) -> None:
    assert str(refusal(code)) == text


def test_who_only_looks_for_a_name_finds_none() -> None:
    assert not hasattr(dray, "tune")
    assert getattr(dray, "tune", None) is None
    assert importlib.util.find_spec("dray.tune") is None
    assert pickle.loads(pickle.dumps(refusal("dray.tune"))).absent == "tune"


def test_other_packages_are_left_alone() -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module("draynothing.tune")
    assert not isinstance(caught.value, AbsentError)


def test_modules_are_there_by_attribute_and_loaded_when_used() -> None:
    code = (
        "import sys, dray as ray; print('dray.util' in sys.modules, 'dray.train' in sys.modules);"
        "print(ray.util.ActorPool.__name__, ray.util.queue.Queue.__name__,"
        "ray.train.ScalingConfig.__name__, ray.exceptions.RayError.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\nActorPool Queue ScalingConfig DrayError\n"


def test_arguments_are_refused_by_name_and_before_anything_begins() -> None:
    calls: list[int] = []

    @checked_arguments("dray.example")
    def example(size: int = 1) -> None:
        calls.append(size)

    example(2)
    with pytest.raises(AbsentArgumentError, match=r"dray.example\(\) has no argument 'siz'; did"):
        example(siz=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="it takes size"):
        example(qqq=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError):
        example(qqq=None)  # type: ignore[call-arg]
    assert calls == [2]


def test_a_member_that_a_class_lacks_is_not_there_for_who_looks() -> None:
    class Example:
        missing = AbsentMember()

    assert not hasattr(Example, "missing")
    assert not hasattr(Example(), "missing")
    with pytest.raises(AbsentNameError, match="Example"):
        _ = Example().missing
