"""No secret gets out: not through files, overrides, Hydra's own flags, variables, commands or typos."""

import base64
import json
import os
import re
import subprocess
import sys
from urllib.parse import quote

import commands
import pytest
from conftest import ELASTIC, LLAMA_K8S, ROOT, composed, shipped

from launcher import pipeline
from launcher.cli import launch
from launcher.cli import main as cli
from launcher.common import redaction
from launcher.common.problems import Problem, ProblemsFound, shown
from launcher.common.random_values import random_parts
from launcher.common.secret_forms import masked_code, masked_program
from launcher.config.collection import clusters
from launcher.config.compose import compose
from launcher.model.config_tree import leaves

CANARY = "Canary7f3a9c1e"
K8S = (*LLAMA_K8S, "container=img:1")
SLURM = (*K8S, "cluster=slurm", "instance_type=p5.48xlarge", "git.repo_url_or_path=https://a.b/c")
ARGS = "recipes.training_config.training_args"


def main(*words, cwd, **env):
    """Run main.py; return its exit code, and everything it printed or wrote."""
    result = commands.run(
        [sys.executable, str(ROOT / "main.py"), *words],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    written = "".join(f"{p}\n{p.read_text(errors='replace')}" for p in sorted(cwd.rglob("*")) if p.is_file())
    return result.returncode, result.stdout + result.stderr, written


REFUSED = {
    "mistyped-separator": ("env_vars.HF_TOKEN:{}",),
    "mistyped-name": ("git.tokn={}",),
    "mistyped-beyond-recognition": ("git.tkn={}",),
    "package": ("git.token@x={}",),
    "single-size": (ELASTIC, "++recipes.scale_config.3.run.hf_access_token={}"),
    "single-size-mapping": (ELASTIC, "++recipes.scale_config.3.run={{hf_access_token: {}}}"),
    "bracket": ("+env_vars.MY_TOKEN={}[",),
    "oauth2-url": ("git.repo_url_or_path=https://oauth2:{}@github.com/a/b",),
    "oauth2-bare": ("git.repo_url_or_path=oauth2:{}@github.com/a/b",),
    "url-in-variable": ("+env_vars.PIP_INDEX_URL=https://me:{}@pypi.example.com/simple",),
    "url-in-dataset": ("recipes.training_config.datasets.train_data.file_path=https://me:{}@example.com/d",),
    "pre-script-export": ("+recipes.pre_script=['export DB_PASS={}']",),
    "pre-script-quoted": ("+recipes.pre_script=['export DB_PASS=\"{} two\"']",),
    "pre-script-curl": ("+recipes.pre_script=['curl -u me:{} https://example.com']",),
    "pre-script-header": ("+recipes.pre_script=['curl -H \"X-Api-Key: {}\" https://example.com']",),
    "pre-script-bearer": ("+recipes.pre_script=['curl -H \"Authorization: Bearer {}\" example.com']",),
    "pre-script-clone": ("+recipes.pre_script=['git clone https://oauth2:{}@github.com/a/b']",),
    "pre-script-clone-bare": ("+recipes.pre_script=['git clone oauth2:{}@github.com/a/b']",),
    "pre-script-login": ("+recipes.pre_script=['wandb login {}']",),
    "post-script-stdin": ("+recipes.post_script=['echo {} | docker login --password-stdin example.com']",),
    "pre-script-mysql": ("+recipes.pre_script=['mysql -uroot -p{} db']",),
    "command": ("+cluster.command=[bash, -c, 'train --hf-token {}']",),
    "annotation": ("cluster.annotations={{apiKey: {}}}",),
    "label": ("cluster.custom_labels={{hfToken: {}}}",),
    "mapping": ("++recipes.db_password={{value: {}}}", "recipes.extra_keys=[db_password]"),
    "list": ("++recipes.api_keys=[{}, b]", "recipes.extra_keys=[api_keys]"),
    "list-of-mappings": ("++recipes.stores=[{{password: {}}}]", "recipes.extra_keys=[stores]"),
    "camel-case": ("++recipes.hfToken={}", "recipes.extra_keys=[hfToken]"),
    "hyphens": ("++recipes.api-key={}", "recipes.extra_keys=[api-key]"),
    **{
        name: (f"+env_vars.{name}={{}}",)
        for name in (
            *("PGPASSWORD", "MYSQL_PWD", "DB_PASS", "PASSPHRASE", "AUTHORIZATION", "WANDB_KEY", "GITHUB_PAT", "JWT"),
            *("HF_TOKENS", "hfToken", "HF_TOKN", "X_KEY", "SESSION_COOKIE", "REDISCLI_AUTH"),
        )
    },
}


@pytest.mark.parametrize("overrides", REFUSED.values(), ids=REFUSED)
def test_a_secret_is_refused_and_not_repeated(overrides, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = launch.main([*K8S, "dry_run=true", *(text.format(CANARY) for text in overrides)])
    printed = "".join(capsys.readouterr())
    assert code == 2
    assert CANARY not in printed
    assert not list(tmp_path.iterdir())


SCRIPT = (
    *("recipes=training/custom/script", "cluster=k8s", "container=img:1"),
    *("training_cfg.entry_module=json.tool", "training_cfg.run.ntasks_per_node=8"),
)
URL = "https://me:abc123@example.com/x"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"
TRACKING = "recipes.training_config.mlflow.tracking_uri"
DATA = "recipes.training_config.datasets.train_data.file_path"
GIVEN, WORDS = "training_cfg.script_args", "recipes.training_cfg.script_args"
WANDB = "recipes.training_config.use_wandb"
DECLARED = "recipes.extra_keys=[words,training_config.use_wandb]"
PLACES = {
    "tracking-url": ((*K8S, f"{TRACKING}={URL}"), "E603", TRACKING, None),
    "git-url": ((*K8S, f"git.repo_url_or_path={URL}"), "E603", "git.repo_url_or_path", None),
    "git-url-query": ((*K8S, f"git.repo_url_or_path='{URL}?a=b'"), "E603", "git.repo_url_or_path", None),
    "git-url-of-a-section": ((*K8S, f"git={{repo_url_or_path: '{URL}'}}"), "E603", "git.repo_url_or_path", "git"),
    "variable": ((*K8S, f"+env_vars.PROXY={URL}"), "E606", "env_vars.PROXY", None),
    "secret-variable": ((*K8S, f"+env_vars.MY_TOKEN={URL}"), "E602", "env_vars.MY_TOKEN", None),
    "token-in-a-secret-variable": ((*K8S, f"+env_vars.MY_TOKEN={TOKEN}"), "E602", "env_vars.MY_TOKEN", None),
    "words": ((*K8S, "++recipes.words=[run,--password,abc123]", DECLARED), "E607", "recipes.words", None),
    "in-a-list": (
        (*K8S, "++recipes.words=[run,{a: 1},{b: [{password: abc123}]}]", DECLARED),
        *("E607", "recipes.words.2.b.0.password", None),
    ),
    "option": ((*SCRIPT, f"{GIVEN}=[{{-x: 1}},{{--password: abc123}}]"), "E608", f"{WORDS}.1.--password", None),
    "option-s-list": ((*SCRIPT, f"{GIVEN}=[{{--api-keys: [abc, def]}}]"), "E608", f"{WORDS}.0.--api-keys", None),
    "option-s-url": ((*SCRIPT, f"{GIVEN}=[{{--from: '{URL}'}}]"), "E608", f"{WORDS}.0.--from", None),
    "option-s-urls": ((*SCRIPT, f"{GIVEN}=[{{--from: [1, '{URL}']}}]"), "E608", f"{WORDS}.0.--from", None),
    "before": ((*K8S, "+recipes.pre_script=[ls,'curl -u me:abc123 h']"), "E608", "recipes.pre_script.1", None),
    "after": ((*K8S, "+recipes.post_script=['curl -u me:abc123 h',ls]"), "E608", "recipes.post_script.0", None),
    "command": ((*K8S, "+cluster.command=[sh,-c,'train --hf-token abc123']"), "E608", "cluster.command", None),
    "annotation": ((*K8S, "cluster.annotations={a.b/apiKey: abc}"), "E608", "cluster.annotations.a.b/apiKey", None),
    "annotation-s-url": ((*K8S, f"cluster.annotations={{a: '{URL}'}}"), "E608", "cluster.annotations.a", None),
    "wandb": ((*K8S, f"++{WANDB}=abc123", DECLARED), "E608", WANDB, None),
    "token": ((*K8S, f"{DATA}={TOKEN}"), "E609", DATA, None),
    "url": ((*K8S, f"{DATA}={URL}"), "E609", DATA, None),
    "reference": ((*SLURM, "git.token={secretKeyRef: {name: a, key: b}}"), "E605", "git.token", "git.token=…"),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "code", "path", "where"), PLACES.values(), ids=PLACES)
def test_a_secret_is_one_problem_at_its_key(problems, overrides, code, path, where):
    (problem,) = problems(*overrides)
    assert (problem.code, problem.path, problem.where) == (code, path, where or path)


HARMLESS = {
    "words": (*K8S, "++recipes.words=[run,password,abc123]", DECLARED),
    "options": (*K8S, "++recipes.words=[--epochs,abc123]", DECLARED),
    "reference": (*K8S, "++recipes.words={password: {env: DB_PASS}}", DECLARED),
    "wandb": (*K8S, f"++{WANDB}=true", DECLARED),
    "no-wandb": (*K8S, f"++{WANDB}=''", DECLARED),
    "annotation": (*K8S, "cluster.annotations={a: b}"),
    "at-sign": (*K8S, f"{DATA}=/data/a@b"),
    "variable": (*K8S, "+env_vars.A={secretKeyRef: {name: a, key: b}}"),
    "local-variable": ("+env_vars.A={env: B}",),
    "list": (*SCRIPT, f"{GIVEN}=[{{--keys: [1, a]}}]"),
}


@pytest.mark.parametrize("overrides", HARMLESS.values(), ids=HARMLESS)
def test_what_is_not_a_secret_is_accepted(prepare, overrides):
    assert prepare(*overrides).name


@pytest.mark.parametrize("value", ["12345678901", "[1234567, 2]", "{a: 1234567}"], ids=["number", "list", "mapping"])
def test_what_is_under_a_secret_s_name_need_not_be_text(problems, value):
    (problem,) = problems(*K8S, f"++recipes.db_password={value}", "recipes.extra_keys=[db_password]")
    assert problem.code == "E607"
    assert "1234567" not in str(problem)


FLAGS = {
    "multirun": ("--multirun", "dry_run=true", f"git.token={CANARY}"),
    "multirun-sweep": ("--multirun", "dry_run=true", f"git.token={CANARY},b"),
    "multirun-command": ("--multirun", "dry_run=true", f"+recipes.pre_script=['curl -H \"X-Api-Key: {CANARY}\" h']"),
    "multirun-typo": ("--multirun", "dry_run=true", f"env_vars.HF_TOKEN:{CANARY}"),
    **{
        " ".join(flags): (*flags, f"git.token={CANARY}")
        for flags in (
            *(("--cfg", "job"), ("--cfg", "all"), ("--cfg", "hydra"), ("--cfg", "job", "--resolve")),
            *(("--cfg", "job", "-p", "git"), ("--info",), ("--info", "all"), ("--info", "config"), ("--hydra-help",)),
        )
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("words", FLAGS.values(), ids=FLAGS)
def test_no_flag_of_hydra_s_shows_or_writes_a_secret_of_the_command_line(words, tmp_path):
    _, printed, written = main(*K8S, *words, cwd=tmp_path)
    assert CANARY not in printed + written


OWN = f"""defaults:
  - /recipes/{LLAMA_K8S[0].partition("=")[2]}@_here_
  - _self_
run:
  hf_access_token: {{}}
pre_script: ["git clone https://oauth2:{CANARY}@github.com/a/b"]
"""


@pytest.mark.slow
@pytest.mark.parametrize("value", [CANARY, "x1y2"], ids=["long", "short"])
@pytest.mark.parametrize(
    "flags",
    [
        *(("--cfg", "job"), ("--cfg", "all"), ("--cfg", "job", "--resolve"), ("--info", "all"), ("--info", "config")),
        *(("--cfg", "job", "-p", "recipes.run"), ("--multirun", "dry_run=true"), ("dry_run=true",)),
        ("--multirun", "dry_run=true", "hydra.output_subdir=.hydra"),
    ],
    ids=" ".join,
)
def test_no_flag_shows_or_writes_a_secret_of_a_file(flags, value, tmp_path):
    recipe = tmp_path / "elsewhere" / "own.yaml"
    recipe.parent.mkdir()
    recipe.write_text(OWN.format(value))
    here = tmp_path / "here"
    here.mkdir()
    _, printed, written = main(f"recipes={recipe}", "cluster=k8s", "container=img:1", *flags, cwd=here)
    assert CANARY not in printed + written
    assert value not in printed + written


@pytest.mark.slow
def test_a_sweep_writes_its_bundles_only(tmp_path):
    code, printed, _ = main("--multirun", *K8S, "dry_run=true", f"{ARGS}.learning_rate=0.1,0.2", cwd=tmp_path)
    assert code == 0, printed
    assert len(list(tmp_path.glob("results/*/bundle.json"))) == 2
    assert not list(tmp_path.rglob("multirun.yaml"))


@pytest.mark.parametrize("key", ["recipes.run.results_dir", "+env_vars.PLAIN", "cluster.namespace"])
def test_a_reference_to_a_secret_variable_is_refused(key, problems, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "x1")
    (problem,) = problems(*K8S, f"{key}=${{oc.env:HF_TOKEN}}")
    assert "HF_TOKEN" in problem.message
    assert "x1" not in str(problem)


def test_other_variables_are_still_read(render, monkeypatch):
    monkeypatch.setenv("RUN_FLAVOUR", "vanilla")
    files = render(*K8S, "+env_vars.FLAVOUR=${oc.env:RUN_FLAVOUR}", "+env_vars.KIND=${oc.env:RUN_KIND,none}").files
    assert "vanilla" in files["manifests/job.yaml"]


TRACKING = "recipes.training_config.mlflow.tracking_uri"
AS_WRITTEN = {
    "plain": lambda v: v,
    "inside": lambda v: f"a/{v}.b",
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64-with-user": lambda v: base64.b64encode(f"me:{v}".encode()).decode(),
    "hex": lambda v: v.encode().hex(),
    "lower-case": str.lower,
    "url": lambda v: f"q-{quote(v, safe='')}",
}


@pytest.mark.parametrize("write", AS_WRITTEN.values(), ids=AS_WRITTEN)
def test_a_bundle_holds_no_value_of_a_secret_variable(problems_of_launch, write, monkeypatch):
    value = "pa55/Wörd 'and' more"
    monkeypatch.setenv("DB_PASS", value)
    (found,) = problems_of_launch(*K8S, f'+env_vars.PLAIN="{write(value)}"')
    assert (found.code, found.path, found.where) == ("E610", "env_vars.PLAIN", "+env_vars.PLAIN")
    assert "$DB_PASS" in found.message and value not in str(found)


def test_a_secret_that_is_in_no_value_is_one_problem_of_the_bundle(context, monkeypatch):
    monkeypatch.setenv("DB_PASS", "pa55-word-and-more")
    redaction.install()
    context = context._replace(versions={"pa55-word-and-more": "1"})
    job = pipeline.prepare(K8S, context)
    with pytest.raises(ProblemsFound) as caught:
        pipeline.render(job, context)
    (found,) = caught.value.problems
    assert found.code == "E610" and "$DB_PASS" in found.message


def test_a_value_of_a_referenced_variable_is_refused_with_the_other_faults(problems, monkeypatch):
    monkeypatch.setenv("FOO", "qv7x93bLm2")
    words = ("env_vars.A_TOKEN={env: FOO}", "+env_vars.B=x-qv7x93bLm2", f"{TRACKING}='https://m/?token=sekretlit77'")
    found = problems(*words, "wait=7")
    assert {(each.code, each.path) for each in found} == {
        ("E610", "env_vars.B"),
        ("E610", TRACKING),
        ("E102", "wait"),
    }
    assert "qv7x93bLm2" not in str(found) and "sekretlit77" not in str(found)


def test_a_value_that_only_refers_to_an_exposed_secret_is_not_one_more_fault(problems, monkeypatch):
    monkeypatch.setenv("AB_TOKEN", "abcd1234efgh")
    redaction.install()
    (found,) = problems("recipes.run.name=abcd1234efgh")  # results_dir has the name in it
    assert (found.code, found.path) == ("E610", "recipes.run.name")


def test_the_name_of_a_variable_is_not_a_secret(monkeypatch, prepare):
    monkeypatch.setenv("A_TOKEN", "MY_VARIABLE_1")
    monkeypatch.setenv("MY_VARIABLE_1", "qv7x93bLm2")
    redaction.install()
    prepare("env_vars.B_TOKEN={env: MY_VARIABLE_1}")


@pytest.fixture
def problems_of_launch(tmp_path, monkeypatch, context):
    """Return a function from overrides to the Problems that keep their bundle from being written."""
    monkeypatch.chdir(tmp_path)

    def found(*overrides):
        redaction.install()
        with pytest.raises(ProblemsFound) as caught:
            pipeline.render(pipeline.prepare(overrides, context), context)
        assert not list(tmp_path.iterdir())
        return caught.value.problems

    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "value",
    [
        "1",
        "true",
        "main",
        "training",
        "aaaaaaaaaa",
        "00000000",
        "/etc/ssl/private/key.pem",
        "s3://bucket/path",
        "$OTHER",
    ],
)
def test_a_common_value_of_a_secret_variable_hides_nothing(value, recipes, monkeypatch):
    words = ("render", "llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", "cluster=k8s")
    plain = recipes(*words)[1]
    monkeypatch.setenv("X_KEY", value)
    code, out, errors = recipes(*words)
    assert code == 0, errors
    assert out.count("…") == plain.count("…")


def test_what_is_printed_holds_no_value_of_a_secret_variable(monkeypatch, capsys):
    monkeypatch.setenv("DB_PASS", CANARY)
    redaction.install()
    print(f"a {CANARY} b", json.dumps({"x": CANARY}), f"{CANARY}-y")
    print(f"e {CANARY}", file=sys.stderr)
    out, errors = capsys.readouterr()
    assert out == 'a … b {"x": "…"} …-y\n'
    assert errors == "e …\n"


def test_a_remedy_in_small_letters_holds_no_secret(recipes, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "S3cr3tEnvValue")
    words = ("llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", "recipes.run.name=S3cr3tEnvValue")
    code, _, errors = recipes("plan", *words)
    assert code == 2 and "E301" in errors and "s3cr3t" not in errors.lower()


def test_a_traceback_holds_no_secret(tmp_path):
    script = f"""
import logging, sys
sys.path.insert(0, {str(ROOT)!r})
from launcher.common import redaction
redaction.install()
logging.basicConfig(level="INFO")
logging.info("value %s", {CANARY[:7]!r} + {CANARY[7:]!r})
raise ValueError("no " + {CANARY[:7]!r} + {CANARY[7:]!r})
"""
    result = subprocess.run(
        [sys.executable, "-c", script], env={"DB_PASS": CANARY}, capture_output=True, text=True, check=False
    )
    assert "value …" in result.stderr
    assert "ValueError: no …" in result.stderr
    assert CANARY not in result.stdout + result.stderr


def test_a_secret_that_was_refused_once_is_not_printed_later(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = "Refused8b2d4f6a"
    assert launch.main([*K8S, "dry_run=true", f"git.token={refused}"]) == 2
    print("later", refused)
    assert refused not in "".join(capsys.readouterr())


def test_a_problem_at_a_secret_s_path_shows_no_value():
    assert "hunter2" not in str(Problem("E214", "recipes.scale_config.3.run.hf_access_token", "is wrong", "hunter2"))


@pytest.mark.parametrize(
    ("typed", "seen"),
    [
        ("git.token=hunter2", "git.token=…"),
        ("git.token.secretKeyRef.name=hf", "git.token.secretKeyRef.name=…"),
        ("env_vars.HF_TOKEN:hunter2", "env_vars.HF_TOKEN…"),
        ("git.token@x=hunter2", "git.token…"),
        ("git.tokn=hunter2", "git.tokn=…"),
        ("~git.token", "~git.token"),
        ("env_vars={HF_TOKEN: hunter2}", "env_vars=…"),
        ("recipes.tokenizer=hunter2", "recipes.tokenizer=hunter2"),
        ("recipes.max_new_tokens=8", "recipes.max_new_tokens=8"),
    ],
)
def test_an_override_is_shown_without_its_secret(typed, seen):
    assert shown(typed) == seen


def test_commands_that_print_show_no_secret(recipes, monkeypatch):
    monkeypatch.setenv("DB_PASS", CANARY)
    for words in (("show", CANARY), ("launch", CANARY), (CANARY,), ("check", f"a{CANARY}")):
        code, out, errors = recipes(*words)
        assert code == 2
        assert CANARY not in out + errors


LEAKY = """
import os
print("starting with", os.environ["DB_PASS"], flush=True)
raise RuntimeError("cannot log in with " + os.environ["DB_PASS"])
"""


@pytest.mark.slow
def test_a_job_that_prints_its_secret_leaves_it_in_its_own_log_only(tmp_path):
    (tmp_path / "leaky.py").write_text(LEAKY)
    words = ("recipes=training/custom/script", "cluster=local", "training_cfg.entry_script=leaky.py")
    secret = "+env_vars.DB_PASS={env: DB_PASS}"
    code, printed, _ = main(
        *words,
        secret,
        "training_cfg.run.ntasks_per_node=1",
        "++recipes.trainer.num_nodes=1",
        cwd=tmp_path,
        DB_PASS=CANARY,
    )
    assert code == 3
    assert "starting with …" in printed
    assert "RuntimeError: cannot log in with …" in printed
    assert CANARY not in printed
    held = {path for path in tmp_path.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()}
    assert {path.name for path in held} == {"stdout.log", "stderr.log"}
    assert all("logs" in path.parts for path in held)


def test_the_streams_are_wrapped_once():
    redaction.install()
    first = sys.stdout
    assert cli.run(["--version-of-nothing"]) == 2
    redaction.install()
    assert sys.stdout is first


@pytest.mark.parametrize(
    "given",
    [
        *("env_vars.SLACK_WEBHOOK=https://hooks.slack.com/services/T0/B0/{}", "env_vars.SLACK_WEBHOOK_URL={}"),
        *(
            "env_vars.SENTRY_DSN=https://{}@o1.ingest.sentry.io/1",
            "env_vars.SENTRY_DSN={}",
            "env_vars.X=slack://{}/a1b2c3d4/e5",
        ),
        "env_vars.X='https://a.blob.core.windows.net/c?sv=1&sig={}xxxxxxxx'",
        "++recipes.x.slack_webhook={}",
    ],
)
def test_a_webhook_is_refused_and_written_nowhere(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("++recipes.extra_keys=[x]",) if "recipes.x" in given else ()
    assert launch.main([*K8S, *words, "dry_run=true", f"++{given.lstrip('+').format(CANARY)}"]) == 2
    out, err = capsys.readouterr()
    assert CANARY not in out + err and re.search("E60[2-9]", err)
    assert list(tmp_path.iterdir()) == []


RANDOM = "q7T2mX9vB4nK8pL1sD6f"


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (f"+env_vars.PLAIN={RANDOM}", "env_vars.PLAIN"),
        (f"+recipes.x.y=[a,{RANDOM}]", "recipes.x.y"),
        (f"+cluster.annotations={{a/b: {RANDOM}}}", "cluster.annotations.a/b"),
    ],
)
def test_a_value_that_looks_random_is_noticed_and_not_repeated(prepare, given, path):
    job = prepare(*K8S, "++recipes.extra_keys=[x]", given)
    (notice,) = [notice for notice in job.notices if notice.code == "N195"]
    assert notice.message.startswith(f"{path} looks random") and RANDOM not in notice.message


@pytest.mark.parametrize("name", ["RUN_ID", "GIT_REVISION", "DATA_DIGEST", "MODEL_NAME", "subnet_ids"])
def test_an_id_may_look_random(prepare, name):
    assert "N195" not in {notice.code for notice in prepare(*K8S, f"+env_vars.{name}={RANDOM}").notices}


@pytest.mark.slow
@pytest.mark.parametrize("cluster", clusters())
def test_nothing_in_the_collection_looks_random(cluster):
    trees = [composed(entry.name).tree for entry in shipped()]
    trees.append(compose([f"cluster={cluster}"], ROOT).tree)
    values = [(path, value) for tree in trees for path, value in leaves(tree)]
    texts = [(path, text) for path, value in values for text in (value if isinstance(value, list) else [value])]
    found = [path for path, text in texts if isinstance(text, str) and any(True for _ in random_parts(text))]
    assert len(texts) > 1000 and found == []


HEX = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f'+os.environ["WANDB_API_KEY"] = "{HEX}"', '+os.environ["WANDB_API_KEY"] = "…"'),
        ('+cfg = {"password": "hunter2xx"}', '+cfg = {"password": …}'),
        ('+cfg["password"] = "hunter2xx"', '+cfg["password"] = "…"'),
        (f'+wandb.login("local-{HEX}")', '+wandb.login("…")'),
        (f'+login(key="{HEX}")', '+login(key="…")'),
        ('+x = os.environ.get("PASSWORD", "hunter2xx")', '+x = os.environ.get("PASSWORD", "…")'),
        ('+os.environ.setdefault("HF_TOKEN", "hunter2xx")', '+os.environ.setdefault("HF_TOKEN", "…")'),
        (f"+ENV WANDB_API_KEY {HEX}", "+ENV WANDB_API_KEY …"),
        ("+  db_password: hunter2xx", "+  db_password: …"),
        (
            '+parser.add_argument("--password", default="hunter2xx")',
            '+parser.add_argument("--password", default="…")',
        ),
        ("+max_tokens = 5", "+max_tokens = 5"),
        ("+num_tokens: 4096", "+num_tokens: 4096"),
        ('+pad_token = "<pad>"', '+pad_token = "<pad>"'),
        (
            '+tokenizer = AutoTokenizer.from_pretrained("meta/x")',
            '+tokenizer = AutoTokenizer.from_pretrained("meta/x")',
        ),
        ("+++ b/password.txt", "+++ b/password.txt"),
        ('+add_argument("--lr", default="0.1")', '+add_argument("--lr", default="0.1")'),
    ],
)
def test_a_line_of_code_is_shown_without_what_a_secret_s_name_is_given(line, shown):
    assert masked_code(line) == shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ('+secret = (\n+    "hunter2mmm"\n+)\n+lr = "0.1"', '+secret = …\n+    "…"\n+)\n+lr = "0.1"'),
        ('+secret = (\n+    "hunter2"\n+    "mmm"  # x (\n+)\n+a = "b"', None),
        (
            '+token: str = Secret(\n+    f("a"), "hunter2mmm"\n+)\n+lr = "0.1"',
            '+token: … = Secret(\n+    f("…"), "…"\n+)\n+lr = "0.1"',
        ),
        (
            '+  const secret =\n+    "hunter2mmm";\n+  const lr = "0.1"',
            '+  const secret =\n+    "…";\n+  const lr = "0.1"',
        ),
        ('+password = \\\n+  "hunter2mmm"\n+a = "b"', '+password = \\\n+  "…"\n+a = "b"'),
        ('+wandb.login(\n+    key="hunter2mmm",\n+)\n+a = "b"', '+wandb.login(\n+    key="…",\n+)\n+a = "b"'),
        (
            '+    "--password",\n+    default="hunter2mmm",\n+    help="b"',
            '+    "--password",\n+    default="…",\n+    help="b"',
        ),
        ('+token = """\n+hunter2\n+mmm"""\n+a = "b"', '+token = """\n+…\n+…\n+a = "b"'),
        ("+password: |-  # x\n+  hunter2\n+\n+  mmm\n+lr: 0.1", "+password: |-  # x\n+  …\n+…\n+  …\n+lr: 0.1"),
        ("+- token: >\n-    hunter2\n+    mmm\n   lr: 0.1", "+- token: …\n-    …\n+    …\n   lr: 0.1"),
        ('+secret = (\n@@ -1 +1 @@\n+a = "b"', '+secret = …\n@@ -1 +1 @@\n+a = "b"'),
        ('+a = {"token": ["b",\n+    "hunter2mmm"]}\n+b = "c"', None),
        ('+if token in known(\n+    "b"\n+)', '+if token in known(\n+    "b"\n+)'),
        ('+def get_token(\n+    region="b"\n+)', '+def get_token(\n+    region="b"\n+)'),
    ],
)
def test_lines_of_code_are_shown_without_values_below_a_secret_s_name(code, shown):
    found = "\n".join(masked_program(code.split("\n")))
    assert found == shown if shown else "hunter2" not in found and "mmm" not in found


def test_a_random_text_beside_a_token_is_masked():
    beside = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzzzzzzKEY"
    assert beside not in masked_code(f'+aws = "AKIAIOSFODNN7ABCDEFG"; s = "{beside}"')
    assert masked_code(f'+s = "{beside}"') == f'+s = "{beside}"'
