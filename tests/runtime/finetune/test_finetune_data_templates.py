"""Chat templates: where they come from, what they may do, and what they must not."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from launcher.runtime.finetune.data.errors import DataError, SampleError
from launcher.runtime.finetune.data.preparation import prepare
from launcher.runtime.finetune.data.settings import DataSettings
from launcher.runtime.finetune.data.templates import ChatTemplate
from launcher.runtime.finetune.data.tokenization import open_tokenizer
from launcher.runtime.finetune.rehearsal_data import write_rehearsal_data

CHAT = [{"role": "user", "content": "What rings twice?"}, {"role": "assistant", "content": "The ferry bell."}]
PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rehearsal_data(tmp_path_factory.mktemp("rehearsal"), "sft", 1).tokenizer_folder


@pytest.fixture
def tokenizer(shipped: Path, tmp_path: Path) -> Path:
    """Return a tokenizer without a template."""
    folder = tmp_path / "tokenizer"
    shutil.copytree(shipped, folder)
    configure(folder, chat_template=None)
    return folder


def configure(folder: Path, **values: Any) -> None:
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def prepared(tokenizer: Path, tmp_path: Path, **settings: Any):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"messages": CHAT}) + "\n")
    return prepare(DataSettings("sft", str(path), split_ratio=1.0, **settings), tokenizer, tmp_path / "prepared")


def text_of(tokenizer: Path, found: Any) -> str:
    plain = open_tokenizer(tokenizer, DataSettings("sft", "")).tokenizer
    return plain.decode(found.train.ids.tolist(), skip_special_tokens=False)


def test_a_tokenizer_without_a_template_is_an_error_that_says_how_to_give_one(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"has no chat template\. Give one: .*chat_template_name=\./template\.jinja"):
        prepared(tokenizer, tmp_path)


def test_plain_text_needs_no_template(tokenizer, tmp_path):
    path = tmp_path / "samples.jsonl"
    path.write_text(json.dumps({"text": "The ferry bell."}) + "\n")
    settings = DataSettings("sft", str(path), split_ratio=1.0, pretrain_mode=True)
    found = prepare(settings, tokenizer, tmp_path / "prepared")
    assert text_of(tokenizer, found) == "The ferry bell.<|end|>"


def test_the_template_is_the_users_then_the_file_then_the_configuration(tokenizer, tmp_path):
    expected = "user: What rings twice?\nassistant: The ferry bell.\n"
    configure(tokenizer, chat_template=f"config {PLAIN}")
    assert text_of(tokenizer, prepared(tokenizer, tmp_path)) == f"config {expected}"
    configure(
        tokenizer, chat_template=[{"name": "tool_use", "template": "x"}, {"name": "default", "template": PLAIN}]
    )
    assert text_of(tokenizer, prepared(tokenizer, tmp_path)) == expected
    (tokenizer / "chat_template.jinja").write_text(f"file {PLAIN}")
    assert text_of(tokenizer, prepared(tokenizer, tmp_path)) == f"file {expected}"
    own = tmp_path / "own.jinja"
    own.write_text(f"own {PLAIN}")
    assert text_of(tokenizer, prepared(tokenizer, tmp_path, template_file=str(own))) == f"own {expected}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("{% if %}", "not a valid chat template", id="syntax"),
        pytest.param("{{ raise_exception('no system') }}", r"samples\.jsonl:1: .*refuses it: no system", id="raise"),
        pytest.param("{{ messages[7].content + 1 }}", r"samples\.jsonl:1: .*refuses it", id="type"),
        pytest.param("{{ 1 / 0 }}", r"samples\.jsonl:1: .*refuses it", id="arithmetic"),
        pytest.param("{{ messages.append(1) }}", r"samples\.jsonl:1: .*refuses it", id="change"),
        pytest.param("{{ ''.__class__.__mro__[1].__subclasses__() }}", r":1: .*refuses it", id="escape"),
        pytest.param("{{ cycler.__init__.__globals__.os.system('true') }}", r":1: .*refuses it", id="globals"),
        pytest.param("{% include '/etc/passwd' %}", r":1: .*refuses it", id="file"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(tokenizer, tmp_path, template, message):
    configure(tokenizer, chat_template=template)
    with pytest.raises(DataError, match=message):
        prepared(tokenizer, tmp_path)


def test_a_template_of_the_user_that_does_not_exist_is_named(tokenizer, tmp_path):
    with pytest.raises(DataError, match=r"no\.jinja: cannot be read"):
        prepared(tokenizer, tmp_path, template_file=str(tmp_path / "no.jinja"))


def test_a_sample_cannot_mark_its_own_text():
    marked = "{% generation %}{{ message.content }}{% endgeneration %}"
    template = ChatTemplate(PLAIN.replace("{{ message.content }}", marked), {}, "test")
    text, (first, *_) = template.marked([{"role": "user", "content": "a"}])
    for forged in (marked, "\ufdd0", "\ufdd1\ufdd2", text):
        rendered, spans = template.marked([{"role": "user", "content": forged}])
        assert [rendered[start:stop] for start, stop in spans] == [forged]
    assert text[slice(*first)] == "a"


def test_a_template_may_use_what_is_documented():
    source = (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}"
        "{{ bos_token }}{{ tools | tojson(indent=1) }}{{ strftime_now('%Y') | length }}{{ enable_thinking }}"
        "{{ messages[1].reasoning_content }}"
    )
    template = ChatTemplate(source, {"bos_token": "<s>", "enable_thinking": False}, "test")
    messages = [{"role": "system", "content": "x"}, {"role": "user", "content": "é<", "reasoning": "why"}]
    text = template.render(messages, [{"name": "clock"}])
    assert '"content": "é<"' in text and '<s>[\n {\n  "name": "clock"\n }\n]4Falsewhy' in text
    assert "x" not in json.loads(text.partition("<s>")[0])["content"]


def test_nested_marks_are_one_part():
    nested = "{% generation %}b{% generation %}c{% endgeneration %}d{% endgeneration %}"
    assert ChatTemplate(f"a{nested}e{{% generation %}}{{% endgeneration %}}", {}, "test").marked([]) == (
        "abcde",
        [(1, 4), (5, 5)],
    )


def test_render_names_the_template_that_refuses():
    with pytest.raises(SampleError, match="the chat template of my.jinja refuses it: alternate"):
        ChatTemplate("{{ raise_exception('alternate') }}", {}, "my.jinja").render([])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("tokenizer.json", None, r"no tokenizer\.json\. .*save_pretrained", id="none"),
        pytest.param("tokenizer.json", "{", "not a valid tokenizer", id="damaged"),
        pytest.param("tokenizer_config.json", "{", "not valid JSON", id="configuration"),
        pytest.param("tokenizer_config.json", "[]", "must be a JSON object", id="configuration is a list"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_named(shipped, tmp_path, name, content, message):
    folder = tmp_path / "tokenizer"
    shutil.copytree(shipped, folder)
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    with pytest.raises(DataError, match=message):
        prepared(folder, tmp_path)
