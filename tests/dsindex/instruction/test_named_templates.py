"""The templates that dsindex has: small conversations, written by hand as each family's documentation has them."""

import datetime

import pytest

from dsindex.errors import InputError, RecordProblem, TokenizerError
from dsindex.instruction.config import parse_config, read_template, template_names
from dsindex.instruction.encode import InstructionEncoder
from dsindex.instruction.rendering import ChatTemplate
from tests.support.chat_tokenizers import train

SYSTEM, USER = {"role": "system", "content": "S"}, {"role": "user", "content": "U"}
REPLY = {"role": "assistant", "content": "R"}
AGAIN = [{"role": "user", "content": "V"}, {"role": "assistant", "content": "T"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]}
CALLED = [USER, CALL, {"role": "tool", "content": "4"}, REPLY]
QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"type": "function", "function": {"name": "f", "parameters": {}}}\n</tools>\n\nFor each function call, return a '
    "json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
)
QWEN_CALLED = (
    "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    '«<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n»'
    "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)
LLAMA_SYSTEM = "<s><|start_header_id|>system<|end_header_id|>\n\n"
LLAMA_DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
OSS_SYSTEM = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: 2026-01-31\n\nReasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be "
    "included for every message.<|end|>"
)


def shown(name, messages, **variables):
    """The text, with « and » around what is learnt."""
    constants = {"bos_token": "<s>", "eos_token": "</s>"}
    template = ChatTemplate(read_template(name), constants=constants, date=datetime.date(2026, 1, 31))
    text, spans = template.render(messages, **variables)
    for begin, end, _ in reversed(spans):
        text = f"{text[:begin]}«{text[begin:end]}»{text[end:]}"
    return text


EXPECTED = {
    "chatml": (
        [SYSTEM, USER, REPLY],
        ("<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n«R<|im_end|>\n»"),
    ),
    "llama3.1": (
        [SYSTEM, USER, REPLY],
        (
            f"{LLAMA_SYSTEM}{LLAMA_DATES}S<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n«R<|eot_id|>»"
        ),
    ),
    "qwen2.5": (
        [USER, REPLY],
        (
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n«R<|im_end|>\n»"
        ),
    ),
    "qwen3": (
        [USER, REPLY, *AGAIN[:1], {**REPLY, "reasoning_content": "think"}],
        (
            "<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n«R<|im_end|>\n»<|im_start|>user\nV<|im_end|>\n"
            "<|im_start|>assistant\n«<think>\nthink\n</think>\n\nR<|im_end|>\n»"
        ),
    ),
    "mistral": ([USER, REPLY, *AGAIN], ("<s>[INST] U[/INST]« R</s>»[INST] V[/INST]« T</s>»")),
    "gemma3": (
        [SYSTEM, {"role": "user", "content": [{"type": "text", "text": " U "}]}, REPLY],
        ("<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\n«R<end_of_turn>\n»"),
    ),
    "phi4": ([USER, REPLY], ("<|im_start|>user<|im_sep|>U<|im_end|><|im_start|>assistant<|im_sep|>«R<|im_end|>»")),
    "gpt-oss": (
        [SYSTEM, USER, REPLY, AGAIN[0], {**AGAIN[1], "thinking": "think"}],
        (
            f"{OSS_SYSTEM}<|start|>developer<|message|># Instructions\n\nS\n\n<|end|><|start|>user<|message|>U<|end|>"
            "<|start|>assistant«<|channel|>final<|message|>R»<|end|><|start|>user<|message|>V<|end|><|start|>assistant"
            "«<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>T<|return|>»"
        ),
    ),
}


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", template_names())
def test_named_template_is_the_format_of_its_family(name):
    messages, expected = EXPECTED[name]
    assert shown(name, messages) == expected


def test_tools_are_written_as_the_family_does():
    called = "Environment: ipython\n" + LLAMA_DATES
    assert shown("llama3.1", CALLED, tools=[TOOL]) == (
        f"{LLAMA_SYSTEM}{called}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Given the following functions, please respond with a JSON for a function call with its proper arguments that "
        'best answers the given prompt.\n\nRespond in the format {"name": function name, "parameters": dictionary of '
        "argument name and its value}.Do not use variables.\n\n"
        '{\n    "type": "function",\n    "function": {\n        "name": "f",\n        "parameters": {}\n    }\n}\n\n'
        "U<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        '«{"name": "f", "parameters": {"x": 1}}<|eot_id|>»<|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n«R<|eot_id|>»"
    )
    assert shown("qwen2.5", [SYSTEM, *CALLED], tools=[TOOL]) == (
        f"<|im_start|>system\nS\n\n{QWEN_TOOLS}{QWEN_CALLED}«R<|im_end|>\n»"
    )
    assert shown("qwen3", CALLED, tools=[TOOL]) == (
        f"<|im_start|>system\n{QWEN_TOOLS}{QWEN_CALLED}«<think>\n\n</think>\n\nR<|im_end|>\n»"
    )


MISTRAL_CALL = {"type": "function", "id": "abcdef123", "function": {"name": "f", "arguments": {"x": 1}}}
MISTRAL_CALLED = [
    USER,
    {"role": "assistant", "tool_calls": [MISTRAL_CALL]},
    {"role": "tool", "content": "4", "tool_call_id": "abcdef123"},
    REPLY,
]


def test_mistral_describes_tools_before_the_last_question():
    expected = (
        '<s>[INST] U[/INST]« R</s>»[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "f", "parameters": '
        '{}}}][/AVAILABLE_TOOLS][INST] V[/INST]«[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}, "id": "abcdef123"}]'
        '</s>»[TOOL_RESULTS] {"content": 4, "call_id": "abcdef123"}[/TOOL_RESULTS]« R</s>»'
    )
    messages = [USER, REPLY, AGAIN[0], *MISTRAL_CALLED[1:]]
    assert shown("mistral", messages, tools=[TOOL]) == expected


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["mistral", "llama3.1", "qwen2.5", "qwen3", "gpt-oss"])
def test_arguments_of_a_call_may_be_json_text(name):
    """OpenAI's form; the text is what the model generates, so it is not quoted again."""
    called = [USER, {"role": "assistant", "tool_calls": [MISTRAL_CALL]}, MISTRAL_CALLED[2], REPLY]
    spelt = {**MISTRAL_CALL, "function": {"name": "f", "arguments": '{"x": 1}'}}
    assert shown(name, [USER, {"role": "assistant", "tool_calls": [spelt]}, *called[2:]]) == shown(name, called)


@pytest.mark.parametrize("name", ["mistral", "llama3.1", "qwen2.5"])
def test_arguments_that_are_no_json_object_are_quoted(name):
    """As these families' own templates and mistral-common quote them, so that a call stays JSON."""
    loose = {**MISTRAL_CALL, "function": {"name": "f", "arguments": 'x = "1"'}}
    text = shown(name, [USER, {"role": "assistant", "tool_calls": [loose]}, *MISTRAL_CALLED[2:]])
    assert r'"x = \"1\""' in text


def test_gpt_oss_writes_tools_as_types():
    properties = {
        "a": {"type": "string", "description": "A", "enum": ["x", "y"], "default": "x"},
        "b": {"type": "array", "items": {"type": "integer"}, "default": [1]},
        "c": {"type": "object", "properties": {"d": {"type": ["string", "null"]}}, "required": ["d"]},
        "e": {"anyOf": []},
    }
    parameters = {"type": "object", "properties": properties, "required": ["b"]}
    tools = [
        {"type": "function", "function": {"name": "f", "description": "F.", "parameters": parameters}},
        {"type": "function", "function": {"name": "g", "description": "G."}},
    ]
    described = (
        "<|start|>developer<|message|># Instructions\n\nS\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n"
        '// F.\ntype f = (_: {\n// A\na?: "x" | "y", // default: x,\nb: number[], // default: [1],\n'
        f"c?: {{\nd: \n{' ' * 16}string | null}},\ne?: any,\n}}) => any;\n\n"
        "// G.\ntype g = () => any;\n\n} // namespace functions<|end|>"
    )
    system = OSS_SYSTEM.replace(
        "<|end|>", "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>"
    )
    called = (
        '<|start|>assistant«ANALYSIS to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>»'
        '<|start|>functions.f to=assistant<|channel|>commentary<|message|>"4"<|end|>'
    )
    analysis = "<|channel|>analysis<|message|>T<|end|><|start|>assistant"
    thought = {**CALL, "thinking": "T"}
    assert shown("gpt-oss", [SYSTEM, USER, thought, CALLED[2]], tools=tools) == (
        f"{system}{described}<|start|>user<|message|>U<|end|>{called.replace('ANALYSIS', analysis)}"
    )
    assert shown("gpt-oss", [USER, thought, CALLED[2], REPLY]) == (
        f"{OSS_SYSTEM}<|start|>user<|message|>U<|end|>{called.replace('ANALYSIS', '')}"
        "<|start|>assistant«<|channel|>final<|message|>R<|return|>»"
    )


CALLS = {**CALL, "tool_calls": CALL["tool_calls"] * 2}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("name", "messages", "variables", "reason"), [
    ("mistral", [SYSTEM, USER, REPLY], {}, "user and assistant in turn"),
    ("mistral", [USER, CALL], {}, "ids of 9 characters"),
    ("mistral", [USER, {**MISTRAL_CALLED[1], "content": "x"}], {}, "a text and calls"),
    ("gpt-oss", [USER, CALLS], {}, "one tool at a time"),
    ("gpt-oss", [USER, {**CALL, "content": "x", "thinking": "y"}], {}, "one tool at a time"),
    ("gpt-oss", [USER, CALLED[2]], {}, "message of the role tool"),
    ("gpt-oss", [USER, REPLY], {"tools": [TOOL]}, "a description of each tool"),
    ("gpt-oss", [USER, REPLY], {"builtin_tools": ["python"]}, "builtin_tools"),
    *((name, [USER, {**CALL, "content": "x"}], {}, "refuses the conv") for name in ("gemma3", "phi4", "chatml")),
    *((name, [USER, REPLY], {"tools": [TOOL]}, "refuses the conv") for name in ("gemma3", "phi4", "chatml")),
])  # fmt: skip
def test_what_a_family_has_no_form_for_is_refused(name, messages, variables, reason):
    with pytest.raises(RecordProblem, match=reason):
        shown(name, messages, **variables)


def test_qwen3_without_thinking_does_not_learn_the_empty_block():
    text = shown("qwen3", [USER, REPLY], enable_thinking=False)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n«R<|im_end|>\n»")


def test_name_is_replaced_by_the_text_when_the_configuration_is_read():
    assert parse_config("chat_template: llama3.1").chat_template == read_template("llama3.1")
    with pytest.raises(
        InputError, match=r"configuration: chat_template: expected .* got 'lama3'; did you mean llama3.1\?"
    ):
        parse_config("chat_template: lama3")


def test_a_template_whose_control_tokens_the_tokenizer_splits_is_refused() -> None:
    tokenizer = train("bytes")
    with pytest.raises(TokenizerError, match=r"no single ids for .* tokens <\|end_header_id\|>, <\|eot_id\|>, "):
        InstructionEncoder(parse_config("chat_template: llama3.1"), tokenizer)
    InstructionEncoder(parse_config("chat_template: llama3.1\ncontrol_tokens: allow"), tokenizer)
    own = parse_config("chat_template: '<|eot_id|>{% generation %}{{ messages[0].content }}{% endgeneration %}'")
    InstructionEncoder(own, tokenizer)
