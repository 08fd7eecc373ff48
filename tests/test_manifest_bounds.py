"""Values that the API server, the kubelet or the container runtime would refuse, and neighbours that are fine."""

from posixpath import normpath

import pytest
from conftest import ELASTIC, LLAMA_K8S, SHORT
from hypothesis import given
from hypothesis import strategies as st

from launcher.backends.kubernetes.rules import bounds
from launcher.common.problems import ProblemsFound
from launcher.rules.program_words import ARGS_LIMIT

POLICY = "recipes.elastic_policy"
CONTEXT = "cluster.security_context"
RIGHTS = CONTEXT + "={{{}}}"
RESOURCES = "++recipes.resources={{{}}}"
VOLUME = "cluster.volumes=[{{volumeName: a, hostPath: {}, mountPath: {}}}]"
CLAIM = "cluster.persistent_volume_claims=[{{claimName: {}, mountPath: {}}}]"
TOLERATION = "cluster.tolerations=[{{{}}}]"
HOST, MOUNT = "cluster.volumes.0.hostPath", "cluster.volumes.0.mountPath"
INT32, INT64 = 2**31 - 1, 2**63 - 1
DIGEST = "a" * 64
SECRET = "+env_vars.A={{secretKeyRef: {{name: {}, key: {}}}}}"
REPOSITORY = "git.repo_url_or_path"

REFUSED = [
    (RESOURCES.format("hugepages: 5Mi, memory: 1Gi"), "E309", "recipes.resources.hugepages", "6Mi"),
    (RESOURCES.format("hugepages: 3Mi, memory: 1Gi"), "E309", "recipes.resources.hugepages", "4Mi"),
    (RESOURCES.format("memory: 64"), "E309", "recipes.resources.memory", "a unit, such as Gi"),
    (RESOURCES.format("memory: 64m"), "E309", "recipes.resources.memory", "a unit, such as Gi"),
    (RESOURCES.format("cpu: -1"), "E309", "recipes.resources.cpu", "negative"),
    (RESOURCES.format("memory: 1gi"), "E309", "recipes.resources.memory", "quantity"),
    (RESOURCES.format("memory: '٣Gi'"), "E309", "recipes.resources.memory", "quantity"),
    (RESOURCES.format("cpu: 192"), "E309", "recipes.resources.cpu", "less than 192"),
    (RESOURCES.format("cpu: 192000m"), "E309", "recipes.resources.cpu", "less than 192"),
    (RESOURCES.format("memory: 2Ti"), "E309", "recipes.resources.memory", "less than 2048Gi"),
    (RIGHTS.format("privileged: maybe"), "E102", f"{CONTEXT}.privileged", "true or false"),
    (RIGHTS.format("runAsUser: -1"), "E102", f"{CONTEXT}.runAsUser", "0"),
    (RIGHTS.format(f"runAsUser: {INT32 + 1}"), "E102", f"{CONTEXT}.runAsUser", str(INT32)),
    (RIGHTS.format("runAsGroup: root"), "E102", f"{CONTEXT}.runAsGroup", "whole number"),
    (RIGHTS.format("capabilities: [SYS_ADMIN]"), "E102", f"{CONTEXT}.capabilities", "mapping"),
    (RIGHTS.format("capabilities: {add: [CAP_SYS_ADMIN]}"), "E102", f"{CONTEXT}.capabilities.add.0", "SYS_ADMIN"),
    (RIGHTS.format("capabilities: {ad: [SYS_ADMIN]}"), "E101", f"{CONTEXT}.capabilities.ad", "add"),
    (RIGHTS.format("capabilities: {drop: []}"), "E310", f"{CONTEXT}.capabilities.drop", "empty"),
    (RIGHTS.format("seLinuxOptions: {}"), "E310", f"{CONTEXT}.seLinuxOptions", "empty"),
    (f"{CONTEXT}={{}}", "E310", CONTEXT, "empty"),
    (RIGHTS.format("procMount: Unmasked"), "E102", f"{CONTEXT}.procMount", "Default"),
    (RIGHTS.format("seccompProfile: {type: Strict}"), "E102", f"{CONTEXT}.seccompProfile.type", "RuntimeDefault"),
    (
        RIGHTS.format("seccompProfile: {type: Localhost}"),
        "E310",
        f"{CONTEXT}.seccompProfile.localhostProfile",
        "missing",
    ),
    (
        RIGHTS.format("seccompProfile: {type: Localhost, localhostProfile: ../a}"),
        "E310",
        f"{CONTEXT}.seccompProfile.localhostProfile",
        "..",
    ),
    (
        RIGHTS.format("appArmorProfile: {type: Unconfined, localhostProfile: a}"),
        "E310",
        f"{CONTEXT}.appArmorProfile.localhostProfile",
        "Localhost only\n     value: 'a'",
    ),
    (
        RIGHTS.format("privileged: true, allowPrivilegeEscalation: false"),
        "E310",
        f"{CONTEXT}.allowPrivilegeEscalation",
        "privileged",
    ),
    (
        RIGHTS.format("capabilities: {add: [SYS_ADMIN]}, allowPrivilegeEscalation: false"),
        "E310",
        f"{CONTEXT}.allowPrivilegeEscalation",
        "SYS_ADMIN",
    ),
    (RIGHTS.format("runAsNonRoot: true, runAsUser: 0"), "E310", f"{CONTEXT}.runAsUser", "root"),
    (
        RIGHTS.format("seccompProfile: {type: Localhost, localhostProfile: /a}"),
        "E310",
        f"{CONTEXT}.seccompProfile.localhostProfile",
        "/a",
    ),
    (
        RIGHTS.format("seccompProfile: {type: Localhost, localhostProfile: ''}"),
        "E310",
        f"{CONTEXT}.seccompProfile.localhostProfile",
        "is empty",
    ),
    (
        RIGHTS.format("appArmorProfile: {type: Localhost, localhostProfile: ' a'}"),
        "E310",
        f"{CONTEXT}.appArmorProfile.localhostProfile",
        "value: ' a'",
    ),
    (
        RIGHTS.format(f"appArmorProfile: {{type: Localhost, localhostProfile: {'a' * 4096}}}"),
        "E310",
        f"{CONTEXT}.appArmorProfile.localhostProfile",
        "4095",
    ),
    (
        RIGHTS.format("allowPrivilegeEscalation: false, privileged: true"),
        "E310",
        f"{CONTEXT}.allowPrivilegeEscalation",
        "value: False",
    ),
    (RIGHTS.format("runAsUser: 0, runAsNonRoot: true"), "E310", f"{CONTEXT}.runAsUser", "value: 0"),
    (RESOURCES.format("hugepages: 2Mi"), "E309", "recipes.resources.hugepages", "memory beside"),
    (
        "cluster.volumes=[{volumeName: a, hostPath: /, mountPath: /b}, {volumeName: a, hostPath: /, mountPath: /c}]",
        "E306",
        "cluster.volumes.1.volumeName",
        "value: 'a'",
    ),
    *(
        (
            f"cluster.volumes=[{{volumeName: {name}, hostPath: /a, mountPath: /b}}]",
            "E306",
            "cluster.volumes.0.volumeName",
            "free",
        )
        for name in ("config", "shm")
    ),
    (VOLUME.format("a/b", "/b"), "E313", HOST, "/a/b"),
    (VOLUME.format("/a", "b"), "E313", MOUNT, "remedy: /b"),
    (VOLUME.format("/a/../b", "/a"), "E313", HOST, ".."),
    (VOLUME.format("..", "/a"), "E313", HOST, "absolute"),
    (VOLUME.format("''", "/a"), "E313", HOST, "absolute"),
    (VOLUME.format(f"/{'a' * 4096}", "/a"), "E313", HOST, "4095"),
    (VOLUME.format("/a", "/"), "E313", MOUNT, "image's files"),
    (VOLUME.format("/a", "//"), "E313", MOUNT, "image's files"),
    (VOLUME.format("/a", "/./"), "E313", MOUNT, "image's files"),
    (VOLUME.format("/a", "/a/../../b"), "E313", MOUNT, ".."),
    (VOLUME.format("/a", "'/a:b'"), "E313", MOUNT, "':'"),
    (VOLUME.format("/a", "/proc/sys"), "E313", MOUNT, "/proc"),
    (VOLUME.format("/a", "/config"), "E313", MOUNT, "/config"),
    (VOLUME.format("/a", "//config/x"), "E313", MOUNT, "/config"),
    (VOLUME.format("/a", "/dev/shm/"), "E313", MOUNT, "twice"),
    (VOLUME.format("/a", "/dev/shm/"), "E313", MOUNT, "value: '/dev/shm/'"),
    (VOLUME.format("/a", "/var/log/sagemaker_checkpointing"), "E313", MOUNT, "twice"),
    (CLAIM.format("a", "data"), "E313", "cluster.persistent_volume_claims.0.mountPath", "/data"),
    (CLAIM.format("A", "/a"), "E306", "cluster.persistent_volume_claims.0.claimName", "DNS"),
    (CLAIM.format("a..b", "/a"), "E306", "cluster.persistent_volume_claims.0.claimName", "DNS"),
    (
        "cluster.volumes=[{volumeName: checkpoint-log, hostPath: /a, mountPath: /b}]",
        "E306",
        "cluster.volumes.0.volumeName",
        "checkpoint-log",
    ),
    (f"{POLICY}.scaling_timeout={INT32 + 1}", "E102", f"{POLICY}.scaling_timeout", str(INT32)),
    (f"{POLICY}.graceful_shutdown_timeout={10**30}", "E102", f"{POLICY}.graceful_shutdown_timeout", str(INT32)),
    (f"++{POLICY}.faulty_timeout={INT32 + 1}", "E102", f"{POLICY}.faulty_timeout", str(INT32)),
    (f"++{POLICY}.scale_up_snooze_time={INT32 + 1}", "E102", f"{POLICY}.scale_up_snooze_time", str(INT32)),
    *(
        (f"cluster.run_policy={{{key}: {INT32 + 1}}}", "E102", f"cluster.run_policy.{key}", str(INT32))
        for key in (
            "activeDeadlineSeconds",
            "startupDeadlineSeconds",
            "faultDeadlineSeconds",
            "jobMaxRetryCount",
            "ttlSecondsAfterFinished",
        )
    ),
    (
        f"cluster.run_policy={{restartPolicy: {{evalPeriodSeconds: {INT32 + 1}}}}}",
        "E102",
        "cluster.run_policy.restartPolicy.evalPeriodSeconds",
        str(INT32),
    ),
    (f"cluster.run_as_user={INT32 + 1}", "E102", "cluster.run_as_user", str(INT32)),
    (f"cluster.fs_group={INT32 + 1}", "E102", "cluster.fs_group", str(INT32)),
    (TOLERATION.format("key: a b, operator: Exists"), "E303", "cluster.tolerations.0.key", "label key"),
    (TOLERATION.format("key: a, operator: Equal, value: b c"), "E303", "cluster.tolerations.0.value", "label value"),
    (
        TOLERATION.format(f"key: a, effect: NoExecute, tolerationSeconds: {INT64 + 1}"),
        "E102",
        "cluster.tolerations.0.tolerationSeconds",
        str(INT64),
    ),
    (TOLERATION.format("key: a, operator: In"), "E102", "cluster.tolerations.0.operator", "Exists"),
    (TOLERATION.format("key: a, effect: Evict"), "E102", "cluster.tolerations.0.effect", "NoExecute"),
    ("cluster.custom_labels={a/b/c: d}", "E303", "cluster.custom_labels.a/b/c", "label key"),
    ("cluster.custom_labels={Example.com/a: d}", "E303", "cluster.custom_labels.Example.com/a", "label key"),
    (f"cluster.custom_labels={{a: {'b' * 64}}}", "E303", "cluster.custom_labels.a", "63"),
    ("cluster.annotations={a b: c}", "E304", "cluster.annotations.a b", "annotation key"),
    ("cluster.queue_name=a..b", "E307", "cluster.queue_name", "DNS name"),
    (f"cluster.service_account_name={'a' * 254}", "E307", "cluster.service_account_name", "DNS name"),
    ("cluster.namespace=a.b", "E302", "cluster.namespace", "DNS label"),
    (SECRET.format("a..b", "k"), "E102", "env_vars.A.secretKeyRef.name", "DNS name"),
    (SECRET.format("a", "'..k'"), "E102", "env_vars.A.secretKeyRef.key", "two dots"),
    (SECRET.format("a", "."), "E102", "env_vars.A.secretKeyRef.key", "two dots"),
    ("+env_vars={A-B: c}", "E604", "env_vars.A-B", "letters"),
    (f"container='a@sha256:{'a' * 32}'", "E305", "container", "image reference"),
    (f"container='a@md5:{'a' * 32}'", "E305", "container", "image reference"),
    (f"container='a@sha256:{'A' * 64}'", "E305", "container", "image reference"),
    (f"container={'a' * 256}", "E305", "container", "image reference"),
    (f"container={DIGEST}", "E305", "container", "image reference"),
    ("container='a..b/c:1'", "E305", "container", "image reference"),
    ("container='docker://host#me/image:1'", "E305", "container", "image reference"),
    ("container='a:٣/c'", "E305", "container", "image reference"),
    ("container=a/B:1", "E305", "container", "image reference"),
    (f"{REPOSITORY}=/home/me/code", "E323", REPOSITORY, "server"),
    (f"{REPOSITORY}=../code", "E323", REPOSITORY, "server"),
    (f"{REPOSITORY}=code", "E323", REPOSITORY, "server"),
    (f"{REPOSITORY}='~/code'", "E323", REPOSITORY, "server"),
    (f"{REPOSITORY}='file:///code'", "E323", REPOSITORY, "server"),
    (f"{REPOSITORY}='ext::sh -c id'", "E323", REPOSITORY, "server"),
]

FINE = [
    RESOURCES.format("hugepages: 5120Mi, memory: 1Gi"),
    RESOURCES.format("hugepages: 2097152, memory: '1e9'"),
    RESOURCES.format("cpu: '0.5', memory: 128974848000m"),
    RIGHTS.format("privileged: null, runAsUser: 0, runAsNonRoot: false"),
    RIGHTS.format("capabilities: {add: [IPC_LOCK], drop: [ALL]}, allowPrivilegeEscalation: false"),
    RIGHTS.format("seccompProfile: {type: Localhost, localhostProfile: a/b.json}"),
    RIGHTS.format("appArmorProfile: {type: Localhost, localhostProfile: a}"),
    RIGHTS.format("seLinuxOptions: {level: 's0:c1,c2'}, readOnlyRootFilesystem: true"),
    RIGHTS.format(f"appArmorProfile: {{type: Localhost, localhostProfile: {'a' * 4095}}}"),
    RIGHTS.format("appArmorProfile: {type: Localhost, localhostProfile: /a/..}"),
    RIGHTS.format("privileged: true, allowPrivilegeEscalation: true"),
    RIGHTS.format("runAsNonRoot: true, runAsUser: 1"),
    VOLUME.format("/a/..b/c..", "/a"),
    VOLUME.format("/", "/host"),
    VOLUME.format("/a", "/processes"),
    VOLUME.format("/a", "/configuration"),
    VOLUME.format("/a", "/dev/shm/x"),
    CLAIM.format("a.b", "/a"),
    f"{POLICY}.scaling_timeout={INT32}",
    f"{POLICY}.graceful_shutdown_timeout={INT32}",
    f"cluster.run_policy={{activeDeadlineSeconds: {INT32}, ttlSecondsAfterFinished: -1}}",
    TOLERATION.format("key: example.com/a, operator: Equal, value: ''"),
    TOLERATION.format(f"operator: Exists, effect: NoExecute, tolerationSeconds: {INT64}"),
    "cluster.annotations={Example.com/a: 'any thing'}",
    SECRET.format("a.b", ".k_e-y"),
    f"container='a.example.com:5000/b/c__d:1@sha256:{DIGEST}'",
    "container='localhost/a'",
    "container='[::1]:5000/a'",
    "env_vars=null",
    f"{REPOSITORY}=https://github.com/a/b.git",
    f"{REPOSITORY}='git@github.com:a/b'",
    f"{REPOSITORY}='host.example:a/b'",
]


@pytest.mark.parametrize(("override", "code", "path", "says"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_would_be_refused_later_is_one_problem_now(problems, override, code, path, says):
    (problem,) = problems(*LLAMA_K8S, ELASTIC, override)
    assert (problem.code, problem.path) == (code, path)
    assert says in str(problem)


@pytest.mark.slow
@pytest.mark.parametrize("override", FINE, ids=lambda value: value[:60])
def test_values_at_the_bounds_are_rendered(render, override):
    render(*LLAMA_K8S, ELASTIC, override)


def test_a_repository_below_a_mount_is_within_reach_of_the_pod(prepare, problems):
    mounted = CLAIM.format("a", "/fsx/")
    prepare(*LLAMA_K8S, mounted, f"{REPOSITORY}=/fsx/code")
    (problem,) = problems(*LLAMA_K8S, mounted, f"{REPOSITORY}=/fsx2/code")
    assert problem.code == "E323"


def test_the_names_of_claims_volumes_are_taken(prepare, problems):
    claims = "cluster.persistent_volume_claims=[{claimName: a, mountPath: /x}, {claimName: b, mountPath: /y}]"
    volume = "cluster.volumes=[{{volumeName: claim-{}, hostPath: /a, mountPath: /b}}]"
    prepare(*LLAMA_K8S, claims, volume.format(2))
    (problem,) = problems(*LLAMA_K8S, claims, volume.format(1))
    assert (problem.code, problem.path) == ("E306", "cluster.volumes.0.volumeName")


@pytest.mark.parametrize(
    ("path", "remedy"),
    [("a", "/a"), ("", None), ("a/../b", None), ("/a/../b", None)],
    ids=["a", "none", "up", "rooted"],
)
def test_a_relative_mount_is_mended_from_the_root(problems, path, remedy):
    (problem,) = problems(*LLAMA_K8S, VOLUME.format("/a", f"'{path}'"))
    assert (problem.code, problem.path, problem.remedy) == ("E313", MOUNT, remedy)


def test_a_claim_is_not_mounted_over_a_volume(problems):
    (problem,) = problems(*LLAMA_K8S, VOLUME.format("/a", "/b"), CLAIM.format("a", "/b/"))
    assert (problem.code, problem.path) == ("E313", "cluster.persistent_volume_claims.0.mountPath")


TITLE = "recipes.display_name={}"
THRICE = "${recipes.display_name}" * 3  # one override alone cannot be as long


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "path", "most"),
    [
        (f"+env_vars.A='{THRICE}'", "env_vars.A", 43_689),
        (f"cluster.command=[a,'{THRICE}']", "cluster.command.1", 43_690),
        (f"++recipes.pre_script=['{THRICE}']", "recipes.pre_script", 43_683),
    ],
    ids=["variable", "word", "commands"],
)
def test_a_word_that_no_program_can_be_passed_is_refused(prepare, problems, override, path, most):
    prepare(*LLAMA_K8S, TITLE.format("b" * most), override)
    (problem,) = problems(*LLAMA_K8S, TITLE.format("b" * (most + 1)), override)
    assert (problem.code, problem.path) == ("E324", path)


@pytest.mark.slow
def test_variables_and_arguments_have_a_limit_together(prepare, problems):
    words = ("~env_vars.NCCL_DEBUG", "cluster.command=[a,b]", TITLE.format("b" * 43_689))
    full = [f"+env_vars.A{i}='{THRICE}b'" for i in range(7)]  # each 128 KiB with its null
    left = ARGS_LIMIT - 7 * (128 << 10) - 2 * 43_689 - len("a b A7= ")
    last = "+env_vars.A7='${recipes.display_name}${recipes.display_name}" + "b" * left
    prepare(*LLAMA_K8S, *words, *full, f"{last}'")
    (problem,) = problems(*LLAMA_K8S, *words, *full, f"{last}b'")
    assert (problem.code, problem.path) == ("E324", "env_vars")


@pytest.mark.slow
def test_a_job_that_the_api_could_not_keep_is_refused(render):  # two parts have the variables twice
    parts = f"++{POLICY}.preemption={{base_priority_class: a, elastic_priority_class: b}}"
    many = [f"+env_vars.A{i}={'b' * 60_000}" for i in range(14)]
    render(*LLAMA_K8S, ELASTIC, *many)
    with pytest.raises(ProblemsFound, match="E325 cluster"):
        render(*LLAMA_K8S, ELASTIC, *many, parts)


def test_a_null_character_is_refused(recipes, tmp_path):
    recipe = tmp_path / "null.yaml"
    recipe.write_text(f'defaults:\n  - /recipes/{_full_name()}@_here_\n  - _self_\npre_script: ["a\\0b"]\n')
    code, _, errors = recipes("render", str(recipe), "cluster=k8s")
    assert code == 2 and "E324 recipes.pre_script" in errors and "null character" in errors


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("+env_vars.A='a\0b'", "env_vars.A"),
        ("git.branch='a\0b'", "git.branch"),
        ("cluster.command=[x,'a\0b']", "cluster.command.1"),
        ("++recipes.post_script=[x,'a\0b']", "recipes.post_script"),
        ("training_cfg.script_args=[{-a: 1},{-b: 'a\0b'}]", "recipes.training_cfg.script_args.1"),
        ("training_cfg.script_args=[{-a: [1,'a\0b']}]", "recipes.training_cfg.script_args.0"),
    ],
    ids=["variable", "git", "word", "commands", "argument", "arguments"],
)
def test_a_null_character_is_found_in_every_word(problems, override, path):
    script = (
        "recipes=training/custom/script",
        "training_cfg.entry_module=json.tool",
        "training_cfg.run.ntasks_per_node=8",
    )
    base = (*script, *LLAMA_K8S[1:], "container=me/image:1") if "script_args" in override else LLAMA_K8S
    (problem,) = problems(*base, *(("git.repo_url_or_path=https://a/b",) if path == "git.branch" else ()), override)
    assert (problem.code, problem.path) == ("E324", path)


@pytest.mark.parametrize("cluster", ["local", "slurm", "sm_jobs"])
def test_a_null_character_is_refused_on_every_cluster(problems, cluster):
    found = problems(LLAMA_K8S[0], f"cluster={cluster}", "+env_vars.A='a\0b'")
    assert ("E324", "env_vars.A") in [(problem.code, problem.path) for problem in found]


def _full_name():
    from launcher.config.collection import recipe_names as names

    return next(name for name in names() if name.endswith(SHORT))


@given(st.text("/.:ab", max_size=12))
def test_a_path_that_is_accepted_is_a_folder_below_the_root(path):
    is_clean = path.startswith("/") and ".." not in path.split("/") and ":" not in path
    assert (bounds.mount_path_fault(path) is None) is (is_clean and normpath(path).strip("/") != "")
