"""What the scripted server answers in the client suites. Prompts end inside the model's thoughts unless thinking is off."""

WEATHER_CALL = ("<tool_call>\n<function=get_weather>\n<parameter=city>\n{city}\n</parameter>\n<parameter=days>\n{days}\n</parameter>\n"
                "</function>\n</tool_call>")
ODD_TEXT = 'a "quoted" \\ back\\slash,\na new line, <b>tags</b> & \u00e9\u20ac\U0001f600'

PLANS = {
    "hello": {"answer": "They greet me.\n</think>\n\nHello, world."},
    "plain": {"answer": "Hello, world."},
    "unicode": {"answer": "\U0001f600 \u4f60\u597d\n</think>\n\n\U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9 \u20ac"},
    "tool": {"answer": "I need the weather.\n</think>\n\nOne moment.\n\n" + WEATHER_CALL.format(city="Paris", days=3)},
    "two_tools": {"answer": "Both.\n</think>\n\n" + WEATHER_CALL.format(city="Oslo", days=1) + "\n"
                            + WEATHER_CALL.format(city=ODD_TEXT, days=2)},
    "wrong_tool": {"answer": "Hm.\n</think>\n\n<tool_call>\n<function=launch>\n</function>\n</tool_call>"},
    "quoted": {"answer": "Tags.\n</think>\n\nA call starts with `<tool_call>`, thoughts with `<think>`; that is all."},
    "forever": {"forever": " the one and that is"},
    "fault": {"answer": "Hello, world.", "fault_after": 2},
    "fault_at_once": {"answer": "Hello, world.", "fault_after": 0},
    "done": {"answer": "It rains.\n</think>\n\nTake an umbrella."},
}

WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
