"""Completion scripts for bash, zsh and fish from one description of the commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CompletionOption:
    flags: tuple[str, ...]
    help: str = ""
    takes_value: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompletionCommand:
    name: str
    help: str = ""
    options: tuple[CompletionOption, ...] = ()
    children: tuple[CompletionCommand, ...] = ()
    words: tuple[str, ...] = ()  # possible arguments, where known


def walk_commands(root: CompletionCommand, path: str = "") -> Iterator[tuple[str, CompletionCommand]]:
    """Yield every command with its path: "" for the root, "/engines/install" below it."""
    yield path, root
    for child in root.children:
        yield from walk_commands(child, f"{path}/{child.name}")


def render_bash(root: CompletionCommand) -> str:
    words, values = [], []
    for path, command in walk_commands(root):
        plain = [*(child.name for child in command.children), *command.words]
        flags = [flag for option in command.options for flag in option.flags]
        words.append(f"    {_quote(path)}) words={_quote(' '.join(plain))}; flags={_quote(' '.join(flags))} ;;")
        for pattern, option in _iter_value_options(path, command):
            values.append(f"    {pattern}) words={_quote(' '.join(option.values))}; flags='' ;;")
    return f"""# bash completion for bay; in ~/.bashrc: eval "$(bay completion bash)"
_bay() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} node='' word words='' flags=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$node/$word" in
      {_join_paths(root)}) node="$node/$word" ;;
    esac
  done
  case "$node" in
{_join_lines(words)}
  esac
  case "$node $prev" in
{_join_lines(values)}
  esac
  if [[ $cur == -* ]]; then words=$flags; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _bay bay
"""


def render_zsh(root: CompletionCommand) -> str:
    words, values = [], []
    for path, command in walk_commands(root):
        plain = [_format_description(child.name, child.help) for child in command.children]
        plain += [_quote(_escape(word)) for word in command.words]
        flags = [_format_description(flag, option.help) for option in command.options for flag in option.flags]
        words.append(f"    {_quote(path)}) found=({' '.join(plain)}); flags=({' '.join(flags)}) ;;")
        for pattern, option in _iter_value_options(path, command):
            values.append(f"    {pattern}) found=({' '.join(_quote(_escape(v)) for v in option.values)}); flags=() ;;")
    return f"""#compdef bay
# zsh completion for bay; in ~/.zshrc, after compinit: eval "$(bay completion zsh)"
_bay() {{
  local node='' word
  local -a found flags
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$node/$word" in
      {_join_paths(root)}) node="$node/$word" ;;
    esac
  done
  case "$node" in
{_join_lines(words)}
  esac
  case "$node ${{words[CURRENT-1]}}" in
{_join_lines(values)}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then found=("${{flags[@]}}"); fi
  if (( ${{#found}} )); then _describe 'bay' found; else _files; fi
}}
if [[ "${{funcstack[1]}}" == _bay ]]; then _bay "$@"; else compdef _bay bay; fi
"""


def render_fish(root: CompletionCommand) -> str:
    lines = []
    for path, command in walk_commands(root):
        at = f"complete -c bay -n {_quote(f'__bay_at {path or chr(47)}')}"
        lines += [f"{at} -f -a {child.name} -d {_quote(child.help)}" for child in command.children]
        if command.words:
            lines.append(f"{at} -f -a {_quote(' '.join(command.words))}")
        lines += [f"{at} {_render_fish_option(option)}" for option in command.options]
    return f"""# fish completion for bay: bay completion fish > ~/.config/fish/completions/bay.fish
function __bay_at
  set -l node ''
  for word in (commandline -opc)[2..-1]
    switch "$node/$word"
      case {" ".join(_quote(path) for path, _ in walk_commands(root) if path)}
        set node "$node/$word"
    end
  end
  test -z "$node"; and set node /
  test "$node" = "$argv[1]"
end
{_join_lines(lines)}
"""


def _render_fish_option(option: CompletionOption) -> str:
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    parts.append(f"-d {_quote(option.help)}")
    if option.takes_value:
        parts.append(f"-x -a {_quote(' '.join(option.values))}" if option.values else "-r")
    return " ".join(parts)


def _iter_value_options(path: str, command: CompletionCommand) -> Iterator[tuple[str, CompletionOption]]:
    """Yield options that take a value, with the shell pattern "path --flag". Without known values they complete files."""
    for option in command.options:
        if option.takes_value:
            yield "|".join(_quote(f"{path} {flag}") for flag in option.flags), option


def _join_paths(root: CompletionCommand) -> str:
    return "|".join(_quote(path) for path, _ in walk_commands(root) if path)


def _format_description(name: str, text: str) -> str:
    return _quote(f"{_escape(name)}:{text}" if text else _escape(name))


def _escape(text: str) -> str:
    return text.replace(":", "\\:")


def _quote(text: str) -> str:
    """Quote text, so that an empty one stays an argument."""
    return shlex.quote(text) if text else "''"


def _join_lines(lines: list[str]) -> str:
    return "\n".join(lines)


SCRIPTS = {"bash": render_bash, "zsh": render_zsh, "fish": render_fish}
