"""Random conversations in the shape of OpenAI's API, the same ones every time."""
import random

TEXTS = ["Hello", "", "How are you?", "naïve café ☕ 日本語", "<b>&amp;</b>", "line one\nline two\n", "\n\nstarts low", "quote \" and \\ slash",
         "😀😀", "detailed thinking off", "Be brief.\ndetailed thinking on", "{'not': jinja} {{ nor this }} {% raw %}", "tab\there", " spaces "]
THOUGHTS = ["hmm", "\nline\n\n", "a <tag> inside", "so 2 < 3", ""]
VALUES = ["Tokyo", "", "3", 3, -7, 2.5, 1e30, True, False, None, [1, "two", None], {"a": {"b": []}}, [], {}, "日本\n", 0.1]


def tool(rng):
    name = rng.choice(["get_weather", "search", "run"])
    return {"type": "function", "function": {
        "name": name, "description": rng.choice(TEXTS),
        "parameters": {"type": "object", "properties": {
            "location": {"type": "string", "description": "Wo? – 'quotes'"},
            "days": {"type": "integer", "minimum": 0}}, "required": ["location"]}}}


def call(rng):
    return {"id": f"call_{rng.randrange(1000)}", "type": "function", "function": {
        "name": rng.choice(["get_weather", "search"]),
        "arguments": {f"key{i}": rng.choice(VALUES) for i in range(rng.randrange(4))}}}


def assistant(rng):
    message = {"role": "assistant", "content": rng.choice(TEXTS + [None])}
    kind = rng.randrange(4)
    if kind == 0:
        message["reasoning_content"] = rng.choice(THOUGHTS)
    if kind == 1:
        message["content"] = f"{rng.choice(['', '<think>'])}{rng.choice(THOUGHTS)}</think>{rng.choice(TEXTS)}"
    if rng.random() < 0.4:
        message["tool_calls"] = [call(rng) for _ in range(rng.randrange(1, 4))]
    return message


def conversation(rng):
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": rng.choice(TEXTS)})
    for _ in range(rng.randrange(1, 5)):
        messages.append({"role": "user", "content": rng.choice(TEXTS)})
        if rng.random() < 0.7:
            messages.append(assistant(rng))
            for _ in range(rng.randrange(3)):
                messages.append({"role": "tool", "content": rng.choice(TEXTS), "tool_call_id": "call_1"})
        if rng.random() < 0.1:
            messages.append({"role": "system", "content": rng.choice(TEXTS)})
    context = {"messages": messages, "add_generation_prompt": rng.random() < 0.7}
    if rng.random() < 0.5:
        context["tools"] = [tool(rng) for _ in range(rng.randrange(3))]
    key = rng.choice([None, "enable_thinking", "thinking"])
    if key:
        context[key] = rng.random() < 0.5
    return context


def conversations(number):
    rng = random.Random(11)
    return [conversation(rng) for _ in range(number)]
