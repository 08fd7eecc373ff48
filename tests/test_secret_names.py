"""Which names and which texts are secrets, and which ordinary values of recipes are not."""

import re

import pytest

from launcher.common.random_values import random_parts
from launcher.common.secret_forms import holds_secret, holds_token, is_clear, masked
from launcher.common.secret_names import names_secret

SECRETS = (
    *("HF_TOKEN", "HF_TOKENS", "hfToken", "hf-token", "HFToken", "hftoken", "GITHUBTOKEN", "HF_TOKEN_2", "token"),
    *("PGPASSWORD", "MYSQL_PWD", "DB_PASS", "dbPass", "PASS", "PASSPHRASE", "AUTHORIZATION", "JWT", "JWTS", "creds"),
    *("WANDB_KEY", "wandbKey", "wandb-key", "WANDB_KEYS", "X_KEY", "SSH_KEY", "private-key", "X-Api-Key", "api_keys"),
    *("GITHUB_PAT", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "OPENAI_APIKEY", "CLIENT_SECRET", "SECRET_ID"),
    *(
        "SESSION_COOKIE",
        "REDISCLI_AUTH",
        "_authToken",
        "CREDENTIALS_JSON",
        "CONNECTION_STRING",
        "AZURE_STORAGE_SAS",
        "ROOTPW",
        "DB_PW",
        "hf_access_token",
        "dbPassword",
    ),
    *("tokn", "toekn", "HF_TOKN", "pasword", "PASSWRD", "secert", "credentails"),
)
WORDS_OF_SCANNERS = (
    *("SLACK_WEBHOOK", "SLACK_WEBHOOK_URL", "slackWebhook", "webhookUrl", "TEAMS_WEBHOOK_ENDPOINT", "DISCORD_HOOK"),
    *(
        "SENTRY_DSN",
        "dsn",
        "STORAGE_ACCOUNT_KEY",
        "AccountKey",
        "SharedAccessKey",
        "SharedAccessSignature",
        "SAS_KEY",
    ),
    *("LICENSE_KEY", "licensekey", "SIGNING_KEY", "SIGNINGKEY", "BOT_TOKEN", "TS_AUTHKEY", "NPM_AUTH", "BASIC_AUTH"),
    *("SET_COOKIE", "cookies", "AZURE_PAT", "CONN_STR", "connectionString", "SSH_PASSPHRASE", "MNEMONIC"),
    *("SEED_PHRASE", "VAULT_UNSEAL_KEY", "DOCKER_AUTH_CONFIG", "TOTP", "INTEGRATION_KEY", "weebhook"),
)
OTHERS = (
    *(
        "webhook_timeout",
        "WEBHOOK_ENABLED",
        "webhook_port",
        "forward_hook",
        "hooks",
        "teams",
        "slack_channel",
        "notify_on",
    ),
    *(
        "notify",
        "notify_on",
        "license",
        "author",
        "signature_columns",
        "cookbook",
        "session_id",
        "account_id",
        "hook_names",
    ),
    *("pad_token", "eos_token_id", "max_tokens", "max_new_tokens", "num_tokens", "num_tokens_seen", "total_tokens"),
    *("tokenizer", "tokenizer_name", "disable_fast_tokenizer", "add_special_tokens", "token_type_ids", "stop_tokens"),
    *("tokens_per_second", "TOKENIZERS_PARALLELISM", "image_token_index", "tokens_labels", "PADTOKEN"),
    *("secretKeyRef", "secretName", "imagePullSecrets", "AWS_WEB_IDENTITY_TOKEN_FILE", "credentials_provider_arn"),
    *("extra_keys", "prompt_key", "chat_template_key", "text_key", "TEXT_KEY", "volume_kms_key", "keys", "key"),
    *("PWD", "OLDPWD", "forward_pass", "num_passes", "bypass", "compass", "author", "MLFLOW_TRACKING_AUTH", "path"),
    *("pattern", "taken", "secondary", "section", "monkey", "NCCL_DEBUG", "HF_HOME"),
)
LEAKS = (
    *("export DB_PASS=x1", "export DB_PASS='a b'", "train --hf-token x1", "train --hfToken=x1", '{"token": "x1"}'),
    *(
        "curl -u me:x1 https://h",
        "curl -H 'X-Api-Key: x1' h",
        'curl -H "Authorization: Bearer x1" h',
        "wandb login x1",
    ),
    *("git clone https://oauth2:x1@github.com/a", "git clone oauth2:x1@github.com/a", "https://x1@github.com/a"),
    *(
        "pip install git+https://x1@github.com/a",
        "sshpass -p x1 ssh h",
        "docker login -u me -p x1 h",
        "mysql -uroot -px1",
    ),
    *("echo x1 | docker login --password-stdin h", "huggingface-cli login --token x1"),
    *(
        'wget --header="X-Auth-Token: x1" h',
        'git -c http.extraHeader="Authorization: Basic x1" clone h',
        "java -Dpass=x1",
    ),
    *("aws configure set aws_secret_access_key x1y2z3", "setx DB_PASS x1y2z3", "read DB_PASS <<< x1y2z3"),
    *(
        "echo machine h login me password x1y2z3 > ~/.netrc",
        "echo x1 > ~/.cache/huggingface/token",
        "redis-cli -a x1 ping",
    ),
    *("printf x1 | gh auth login --with-token", "kubectl create secret generic s --from-literal=k=x1"),
)
CONNECTIONS = (
    *(
        "postgres://u:x1y2@h/db",
        "postgresql+psycopg2://u:x1y2@h:5432/db",
        "amqp://u:x1y2@h",
        "redis://:x1y2@h:6379/0",
    ),
    *("mongodb+srv://u:x1y2@h.mongodb.net", "mysql://u:x1y2@h", "smtps://u%40h:x1y2@h:465", "ftp://u:x1y2@h/f"),
    *("https://0123456789abcdef0123456789abcdef@o1.ingest.sentry.io/1", "https://key@o1.ingest.sentry.io/1"),
    *("jdbc:postgresql://h/db?user=u&password=x1y2", "jdbc:oracle:thin:u/x1y2@h:1521:db", "Server=h;Uid=u;Pwd=x1y2;"),
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=x1y2z3==;EndpointSuffix=core.windows.net",
    "Endpoint=sb://h.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=x1y2z3=",
    *("Cookie: session=x1y2z3", "curl -b x --cookie 'a=b; c=d' h", "Authorization: Basic dTpw"),
)
WEBHOOKS = (
    "https://hooks.slack.com/services/T0/B0/" + 6 * "a1b2",
    "https://discord.com/api/webhooks/123456/" + 8 * "a1b2",
    "https://x.webhook.office.com/webhookb2/0a1b2c3d@4e5f/IncomingWebhook/" + 8 * "a1",
    "https://outlook.office.com/webhook/0a1b2c3d@4e5f/IncomingWebhook/" + 8 * "a1",
    "https://chat.googleapis.com/v1/spaces/A/messages?key=k1&token=t1",
    "https://hooks.zapier.com/hooks/catch/123/abc123/",
    "https://a.blob.core.windows.net/c/b?sv=2022-11-02&sig=" + 5 * "a1B2" + "%3D",
    "https://b.s3.amazonaws.com/k?X-Amz-Credential=c&X-Amz-Signature=" + 16 * "a1b2",
    "https://mattermost.example.com/hooks/" + 13 * "a1",
    *("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/", "discord://4174216298/JHMHI8qBe7bk2ZwO5U711o3dV_js"),
    *("tgram://123456789:abcdefg_hijklmnop/12315544/", "SLACK://T1/A1/secretx", "pagertree://a1b2c3d4e5f6"),
    *("prowl://a1b2c3d4e5f6", "mastodon://a1b2c3d4@chat.example.org", "twilio://AC12:a1b2@15551234567"),
    *("ntfys://alerts-a1b2", "json://10.0.0.1:8080/hooks/a1b2c3d4e5f6a7b8c9d0", "mmost://chat.example.org/a1b2c3d4"),
)
PLACES = (
    *("s3://bucket/key/0123456789abcdef01234", "https://host/path/0123456789abc", "sqlite:///runs/mlflow-2026.db"),
    *(
        "hf://org/model-0123456789",
        "gs://bucket/run-2024-11-20",
        "oci://ghcr.io/org/image-0123",
        "file:///data/abc123",
    ),
    *("json://host/training/events", "azure://container/checkpoint-20240101", "redis://cache:6379/0", "x://y"),
    *("slack://$TOKEN/$B/$C", "discord://<id>/<token>", "irc://irc.example.org/#training", "tcp://10.0.0.1:2379"),
)
"""Addresses without a token, some with schemes of Apprise."""
MORE_TOKENS = (
    *("dapi" + 8 * "a1b2", "gsk_" + 13 * "aB12", "hvs." + 8 * "aB12", "nvapi-" + 16 * "aB12", "AIza" + 35 * "a"),
    *(
        "dop_v1_" + 16 * "a1b2",
        "GOCSPX-" + 7 * "aB12",
        "glsa_" + 8 * "aB12" + "_a1b2c3d4",
        "tskey-auth-" + 6 * "aB12",
    ),
    *(
        "xapp-1-A0123456789-1234567890",
        "LTAI" + 5 * "aB12",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----",
        "r8_" + 37 * "a",
    ),
    *("-----BEGIN OPENSSH PRIVATE KEY-----", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"),
)
RANDOM = (
    *(
        "0123456789abcdef0123456789abcdef",
        "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ),
    *("Zm9vYmFyMTIzNDU2Nzg5MDEyMzQ1Ng==", "q7T2mX9vB4nK8pL1sD6f", "https://h.example/in/q7T2mX9vB4nK8pL1sD6f"),
)
NOT_RANDOM = (
    *(
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "deepseek_r1_distilled_qwen_1_dot_5b_seq4k_gpu",
        "AutoModelForCausalLM",
    ),
    *(
        "/fsx/q7T2mX9vB4nK8pL1sD6f/x",
        "./q7T2mX9vB4nK8pL1sD6f",
        "s3://b/q7T2mX9vB4nK8pL1sD6f/x",
        "subnet-0123456789abcdef0",
    ),
    *(
        "img@sha256:" + 32 * "a1",
        "arn:aws:fsx:us-west-2:123456789012:file-system/fs-0123456789abcdef0",
        "2024-01-01T00:00:00Z",
    ),
    *(
        "git+https://github.com/a/b@" + 20 * "a1",
        "123456789012.dkr.ecr.us-west-2.amazonaws.com/x:1",
        "a" * 64,
        "1" * 40,
    ),
    *("llmft_qwen3_1_dot_7b_seq4k_gpu_sft_fft", "isFaultyPodScaleDown=True", "--max_model_length=32768", "${env:X}"),
)
TOKENS = (
    *("hf_" + 34 * "a", "AKIA" + 4 * "ABCD", "sk_live_" + 12 * "a1", "SG." + 11 * "a1" + "." + 14 * "b2c" + "d"),
    *(
        "123456789:" + 11 * "aB3" + "xy",
        "xoxb-123456789012-1234567890123-abc1234567890",
        "-----BEGIN RSA PRIVATE KEY-----",
    ),
    *("//registry.npmjs.org/:_authToken=npm_" + 12 * "a1b", "glpat-" + 10 * "a1", "pypi-AgEIcHlwaS5vcmc" + 36 * "a1"),
)
ORDINARY = (
    *(
        "img:1@sha256:" + 32 * "a1",
        "reg.example.com:5000/a/b:1.2@sha256:" + 32 * "a1",
        20 * "a1",
        32 * "a1",
        16 * "a1",
    ),
    *("arn:aws:sns:us-east-1:123456789012:a-long-topic-name-that-has-35-characters", "mailto:ada@example.com"),
    *("arn:aws:sagemaker:us-west-2:123456789012:mlflow-tracking-server/a1b2c3d4e5f6", "aGVsbG8gd29ybGQ="),
    *("git@github.com:a/b.git", "ssh://git@github.com/a/b", "https://github.com/a/b", "s3://bucket/a:b@c"),
    *("meta-llama/Llama-3.1-8B-Instruct", "Seq2SeqTokensProcessor", "llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora"),
    *("export HF_TOKEN=$TOKEN", "export HF_TOKEN=$(cat /run/token)", "HF_TOKEN=/run/secrets/hf", "cat ~/.token | wc"),
    *(
        "https://$USER:$PASS@host",
        "https://${TOKEN}@github.com",
        "train --max_tokens 8 --pad_token=<pad>",
        "tokens: 5",
    ),
    *(
        "torchrun --nproc_per_node=8 -m train --tokenizer=x --num_tokens 5",
        "hf_access_token: null",
        "train --password-file /x",
    ),
    *("HF_TOKEN={secretKeyRef: {name: hf, key: k}}", "{{ bos_token }}{{ message.role }}: {{ message.content }}"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_known_by_its_name_in_any_spelling(name):
    assert names_secret(name)


@pytest.mark.parametrize("name", WORDS_OF_SCANNERS)
def test_a_name_that_secret_scanners_know_is_a_secret_s(name):
    assert names_secret(name)


@pytest.mark.parametrize("text", CONNECTIONS)
def test_a_connection_string_holds_a_secret(text):
    assert holds_secret(text)


@pytest.mark.parametrize("text", (*WEBHOOKS, *MORE_TOKENS))
def test_a_webhook_or_a_token_is_known_by_its_form_and_not_printed(text):
    assert holds_token(f"a {text} b")
    assert text not in masked(f"a {text} b")


@pytest.mark.parametrize("text", RANDOM)
def test_a_value_that_looks_random_is_known(text):
    assert list(random_parts(text))


@pytest.mark.parametrize("text", NOT_RANDOM)
def test_a_name_a_path_or_a_digest_does_not_look_random(text):
    assert list(random_parts(text)) == []


@pytest.mark.parametrize("name", OTHERS)
def test_an_ordinary_name_is_no_secret_s(name):
    assert not names_secret(name)


@pytest.mark.parametrize("text", LEAKS)
def test_a_text_that_holds_a_secret_is_known_by_its_place(text):
    assert holds_secret(text)


@pytest.mark.parametrize("text", TOKENS)
def test_a_token_is_known_by_its_form(text):
    assert holds_token(f"a {text} b")


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_value_is_neither(text):
    assert not holds_secret(text)
    assert not holds_token(text)


def test_masking_keeps_everything_else():
    text = 'git clone https://me:x1@h/y && A_TOKEN="a b" train --token z --max_tokens 8 loss=3 tokens=12 token: foo'
    assert (
        masked(text)
        == "git clone https://…@h/y && A_TOKEN=… train --token … --max_tokens 8 loss=3 tokens=12 token: foo"
    )


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        *(("tokens", 8192, False), ("tokens", "8k", False), ("TOKENS", ["abc"], True), ("password", 1234, True)),
        *(("token", True, False), ("token", None, False), ("token", "", False), ("token", {"a": 1}, True)),
        *(("token", {"env": "HF_TOKEN"}, False), ("token", {"env": "hf-1234"}, True), ("token", "/run/token", False)),
        ("token", {"secretKeyRef": {"name": "a", "key": "b"}}, False),
        ("token", {"secretKeyRef": {"name": "a", "key": "b", "value": "c"}}, True),
    ],
)
def test_what_is_written_under_a_secret_s_name_counts_if_it_could_be_one(name, value, is_secret):
    assert is_clear(name, value) == is_secret


ORDINARY_OVERRIDES = (
    "+env_vars.MAX_TOKENS=8192",
    "+env_vars.TOKENIZERS_PARALLELISM=false",
    "+env_vars.AWS_WEB_IDENTITY_TOKEN_FILE=/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
    "+env_vars.WANDB_API_KEY={secretKeyRef: {name: wandb, key: k}}",
    "+env_vars.REVISION=" + 20 * "a1",
    "+env_vars.NOTHING='aGVsbG8gd29ybGQ='",
    "+env_vars.TOPIC=arn:aws:sns:us-east-1:123456789012:a-long-topic-name-that-has-35-characters",
    "container=123456789012.dkr.ecr.us-west-2.amazonaws.com/llmft:1@sha256:" + 32 * "a1",
    "+recipes.pre_script=['export HF_TOKEN=$(cat /run/token)', 'python -m train --max_tokens 8 --pad_token=<pad>']",
    "+cluster.command=[torchrun, --tokenizer, llama, train.py]",
    "cluster.annotations={example.com/token-count: '12'}",
)


@pytest.mark.parametrize("override", ORDINARY_OVERRIDES)
def test_ordinary_overrides_compile(override, render):
    render("recipes=fine-tuning/llama/llmft_llama3_1_8b_instruct_seq4k_gpu_sft_lora", "cluster=k8s", override)


@pytest.mark.parametrize("text", PLACES)
def test_an_address_without_a_token_is_neither_refused_nor_masked(text):
    assert not holds_token(text)
    assert masked(f"reads {text} now") == f"reads {text} now"


@pytest.mark.slow
def test_every_address_that_apprise_builds_of_secrets_is_recognized():
    """The exceptions are the schemes that storage has too; their tokens are found by their form or not at all."""
    apprise = pytest.importorskip("apprise", reason="needs apprise: pip install '.[notify]'")
    filled = {"port": "8080", "host": "chat.example.org"}
    tested, missed = 0, set()
    for service in apprise.Apprise().details()["schemas"]:
        private = {name for name, token in service["details"]["tokens"].items() if token.get("private")}
        for template in service["details"]["templates"]:
            if not private.intersection(names := re.findall(r"{(\w+)}", template)):
                continue
            for scheme in {*(service["protocols"] or ()), *(service["secure_protocols"] or ())}:
                values = {name: f"Zq{i}x7Lm29aKd83Wv{i}c" for i, name in enumerate(names)} | filled
                address = template.format(**values | {"schema": scheme})
                tested += 1
                if not (holds_token(address) or holds_secret(address)):
                    missed.add(scheme)
    assert tested > 300
    assert missed <= {"azure", "github"}
