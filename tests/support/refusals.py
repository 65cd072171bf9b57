"""What services say."""

TOO_LONG = [
    (400, "This model's maximum prompt length is 8192 but the request contains 9001 tokens."),
    (400, "input length and `max_tokens` exceed context limit: 7900 + 2048 > 8192, decrease"),
    (400, "The input token count (9001) exceeds the maximum number of tokens allowed (8192)."),
    (400, "Input length 9001 exceeds the maximum allowed input length of 8192 tokens."),
    (400, "Prompt too long"),
    (400, "Prompt exceeds max length"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8192. Given: "
          "7900 `inputs` tokens and 2048 `max_new_tokens`"),
    (400, "Range of input length should be [1, 8192]"),
    (400, "The input token count is 9001 but model only supports up to 8192."),
    (400, "Maximum context length is 8192 tokens, your messages resulted in 9001 tokens."),
    (400, "The decoder prompt (length 9001) is longer than the maximum model length of 8192."),
    (400, "the request exceeds the available context size"),
    (400, "Your request exceeded model token limit: 8192"),
    (400, "Input is too long for requested model."),
    (400, "too many tokens: tokens in the prompt cannot exceed 4081"),
    (400, "输入长度超过限制"),
    (413, "payload"),
]  # fmt: skip
