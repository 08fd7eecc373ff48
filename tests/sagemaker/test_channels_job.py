"""Every input mode in one training job on this machine, from S3 and to S3."""

import io
import json
import tarfile

import pytest
from contract_jobs import J, start

from launcher.backends.sagemaker_local import isolation
from launcher.model.job_spec import JobState

pytestmark = pytest.mark.slow

pytest_plugins = ("s3_server",)

READ = """
import json, os, pathlib, time

top = pathlib.Path(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"))
data, me = top / "input/data", json.loads((top / "input/config/resourceconfig.json").read_text())["current_host"]


def files(name):
    paths = [path for path in (data / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(data / name)): path.read_text() for path in paths}


def epoch(name, number):
    path = data / f"{name}_{number}"
    while not path.exists():
        time.sleep(0.01)
    return path.read_text()


found = {name: files(name) for name in ("files", "fast", "shared")}
found["piped"] = [epoch("piped", number) for number in range(2)]
found["lines"] = epoch("lines", 0)
told = json.loads((top / "input/config/inputdataconfig.json").read_text())
found["modes"] = {name: each["TrainingInputMode"] for name, each in told.items()}
for name in ("files", "fast", "shared") if str(top) == "/opt/ml" else ():
    try:
        (data / name / "new").write_text("")
    except OSError as error:
        found[f"{name} is"] = error.strerror
(top / "model" / me).write_text(json.dumps(found))
"""


def channels(**wanted: dict) -> str:
    return f"{J}.inputs.channels={json.dumps(wanted)}".replace('"', "")


@pytest.mark.parametrize(
    "chosen",
    [pytest.param(isolation.probe(), id="best"), pytest.param(isolation.FOLDERS, id="folders")],
)
def test_every_mode_feeds_a_job(bucket, tmp_path, chosen):
    for number in range(3):
        bucket.put(f"set/deep/{number}", b"%d" % number)
    bucket.put("lines.jsonl", json.dumps({"text-ref": f"{bucket.uri}/set/deep/0", "label": 7}).encode())
    (tmp_path / "efs/data").mkdir(parents=True)
    (tmp_path / "efs/data/a").write_text("of efs")
    here = f"{bucket.uri}/set/"
    job = start(
        tmp_path,
        READ,
        channels(
            files={"s3": here, "distribution": "ShardedByS3Key"},
            fast={"s3": here, "mode": "FastFile"},
            piped={"s3": here, "mode": "Pipe", "record_wrapper": "None"},
            lines={
                "s3": f"{bucket.uri}/lines.jsonl",
                "mode": "Pipe",
                "s3_data_type": "AugmentedManifestFile",
                "attribute_names": ["text-ref", "label"],
            },
            shared={"file_system": {"id": "fs-0123456789abcdef0", "type": "EFS", "directory_path": "/data"}},
        ),
        f"{J}.vpc={{subnets: [subnet-0123456789abcdef0], security_group_ids: [sg-0123456789abcdef0]}}",
        f"cluster.s3_endpoint={bucket.endpoint}",
        f"cluster.file_systems={{fs-0123456789abcdef0: {tmp_path}/efs}}",
        f"{J}.region=us-east-1",
        f"{J}.output_path={bucket.uri}/out",
        nodes=2,
        chosen=chosen,
    )
    status = job.end()
    assert status.state is JobState.SUCCEEDED, (status, job.log())
    packed = io.BytesIO(bucket.get(f"out/{job.handle.job_name}/output/model.tar.gz"))
    with tarfile.open(fileobj=packed) as tar:
        found = {member.name: json.load(tar.extractfile(member)) for member in tar if member.isreg()}
    whole = {f"deep/{number}": str(number) for number in range(3)}
    parts = {"algo-1": {"deep/0": "0", "deep/2": "2"}, "algo-2": {"deep/1": "1"}}
    for host, seen in found.items():
        assert seen["files"] == parts[host]
        assert (seen["fast"], seen["shared"]) == (whole, {"a": "of efs"})
        assert (seen["piped"], seen["lines"]) == (["012", "012"], "07")
        assert seen["modes"] == {
            "files": "File",
            "fast": "File",
            "piped": "Pipe",
            "lines": "Pipe",
            "shared": "File",
            "recipe": "File",
        }
        refused = (
            {} if chosen is isolation.FOLDERS else dict.fromkeys(("fast is", "shared is"), "Read-only file system")
        )
        assert {name: why for name, why in seen.items() if name.endswith(" is")} == refused
    assert sorted(found) == ["algo-1", "algo-2"]
    assert "fast: " in job.told()
