#include "checkpoint/chat_template.h"

namespace calandra {

std::string_view ling_chat_template() {
  return R"jinja({#- Chat format of the BailingMoeV3 family.  Inputs: messages, tools, enable_thinking (default true), add_generation_prompt. -#}
{%- set on = true -%}
{%- if enable_thinking is defined -%}{%- set on = enable_thinking -%}{%- elif thinking is defined -%}{%- set on = thinking -%}{%- endif -%}
{%- set switch = 'detailed thinking on' if on else 'detailed thinking off' -%}
{%- set system = '' -%}
{%- if messages and messages[0].role == 'system' and messages[0].content -%}{%- set system = messages[0].content -%}{%- endif -%}
{%- set given = 'detailed thinking on' in system or 'detailed thinking off' in system -%}
{#- The system block is always written: text of the caller, tools, thinking switch. -#}
{{- '<role>SYSTEM</role>' + system -}}
{%- if tools -%}
  {%- if system -%}{{- '\n' -}}{%- endif -%}
  {{- '# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>' -}}
  {%- for tool in tools -%}{{- '\n' -}}{{- tool | tojson -}}{%- endfor -%}
  {{- '\n</tools>\n\nIf none of the functions can be used, point it out. If the given question lacks the parameters required by the function, also point it out.\nIf you need to use a function, for each function call, output the function name and arguments within the following XML format:\n<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>\n' -}}
  {%- if not given -%}{{- switch -}}{%- endif -%}
{%- elif not given -%}
  {%- if system -%}{{- '\n' -}}{%- endif -%}
  {{- switch -}}
{%- endif -%}
{{- '<|role_end|>' -}}
{%- for m in messages -%}
  {%- set text = m.content if m.content else '' -%}
  {%- if m.role == 'system' -%}
    {%- if not loop.first -%}{{- '<role>SYSTEM</role>' + text + '<|role_end|>' -}}{%- endif -%}
  {%- elif m.role == 'user' -%}
    {{- '<role>HUMAN</role>' + text + '<|role_end|>' -}}
  {%- elif m.role == 'assistant' -%}
    {%- set thought = m.reasoning_content if m.reasoning_content else '' -%}
    {%- if not thought and '</think>' in text -%}
      {%- set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
      {%- set text = text.split('</think>')[-1].lstrip('\n') -%}
    {%- endif -%}
    {{- '<role>ASSISTANT</role>\n<think>' -}}
    {%- if thought -%}
      {{- thought.strip('\n') -}}
      {%- set text = text.lstrip('\n') -%}
    {%- endif -%}
    {{- '</think>' + text -}}
    {%- if m.tool_calls -%}
      {%- for call in m.tool_calls -%}
        {%- set f = call.function if call.function else call -%}
        {%- if text or not loop.first -%}{{- '\n' -}}{%- endif -%}
        {{- '<tool_call>' + f.name -}}
        {%- for key, value in f.arguments.items() -%}
          {{- '<arg_key>' + key + '</arg_key>\n<arg_value>' -}}
          {%- if value is string -%}{{- value -}}{%- else -%}{{- value | tojson -}}{%- endif -%}
          {{- '</arg_value>' -}}
        {%- endfor -%}
        {{- '\n</tool_call>' -}}
      {%- endfor -%}
    {%- endif -%}
    {{- '<|role_end|>' -}}
  {%- elif m.role == 'tool' -%}
    {%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<role>OBSERVATION</role>' -}}{%- endif -%}
    {{- '\n<tool_response>\n' + text + '\n</tool_response>' -}}
    {%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|role_end|>' -}}{%- endif -%}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<role>ASSISTANT</role>\n<think>' -}}
  {%- if not on -%}{{- '</think>' -}}{%- endif -%}
{%- endif -%}
)jinja";
}

}  // namespace calandra
