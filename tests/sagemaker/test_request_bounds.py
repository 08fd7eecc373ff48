"""Every bound of the service model, broken one at a time in a request that has most members."""

import copy
import json

import pytest
from conftest import ROOT

from launcher.backends.sagemaker import constraints, submit

REQUEST = json.loads((ROOT / "tests/golden/sm_everything.json").read_text(encoding="utf-8")) | {
    "ResourceConfig": {
        "InstanceType": "ml.p3.16xlarge",
        "InstanceCount": 1,
        "VolumeSizeInGB": 1,
        "VolumeKmsKeyId": "alias/mine",
        "KeepAlivePeriodInSeconds": 1,
        "TrainingPlanArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/p",
        "InstanceGroups": [{"InstanceGroupName": "a", "InstanceType": "ml.p3.16xlarge", "InstanceCount": 1}],
    },
    "DebugHookConfig": {"S3OutputPath": "s3://b/debug"},
    "ProfilerConfig": {"ProfilingIntervalInMilliseconds": 100},
    "InfraCheckConfig": {"EnableInfraCheck": True},
}


def places(value, path="", keys=()):
    """Yield every value of a request: its member in the model, and the keys that lead to it."""
    yield value, path, keys
    kind = constraints._members()[path]["type"]
    below = {"list": "{}[]", "map": "{}{{value}}"}.get(kind)
    items = value.items() if isinstance(value, dict) else enumerate(value) if kind == "list" else ()
    for key, item in items:
        inner = constraints._below(path, key) if kind == "structure" else below.format(path)
        yield from places(item, inner, (*keys, key))


def of_size(value, kind, size):
    """Return a value of so many characters or entries, or the number itself."""
    if kind in ("integer", "long"):
        return size
    if kind == "string":
        return "a" * size
    return [value[0]] * size if kind == "list" else {f"k{i}": "x" for i in range(size)}


def broken(value, path):
    """Yield what breaks a bound of a member, and the bound's name."""
    bounds = constraints._members()[path]
    kind = bounds["type"]
    yield "type", 5 if kind in ("string", "boolean") else "x"
    if "max" in bounds:
        yield "max", of_size(value, kind, bounds["max"] + 1)
    if bounds.get("min", 0) > 0 or (kind in ("integer", "long") and "min" in bounds):
        yield "min", of_size(value, kind, bounds["min"] - 1)
    if bounds.get("pattern", r"[\S\s]*") != r"[\S\s]*":
        yield "pattern", "\n?\n"
    if "enum" in bounds:
        yield "enum", "Nope"
    if kind == "structure":
        yield "unknown", value | {"Nope": 1}
        for required in bounds.get("required", ()):
            yield "required", {name: item for name, item in value.items() if name != required}
    if kind == "map":
        yield "key", {"\n" * (constraints._members()[f"{path}{{key}}"]["max"] + 1): "x"}


def test_the_request_itself_breaks_none():
    assert submit.request_problems(REQUEST) == ()


@pytest.mark.parametrize("top", sorted(REQUEST))
def test_a_broken_bound_is_told_of_where_it_is(top):
    checked = 0
    for value, path, keys in places(REQUEST):
        for bound, wrong in broken(value, path) if keys and keys[0] == top else ():
            request = copy.deepcopy(REQUEST)
            holder = request
            for key in keys[:-1]:
                holder = holder[key]
            holder[keys[-1]] = wrong
            found = submit.request_problems(request)
            place = f"request.json: {'.'.join(map(str, keys))}"
            assert found and all(problem.path.startswith(place) for problem in found), (place, bound, found)
            checked += 1
    assert checked
