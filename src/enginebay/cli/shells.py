"""Completion scripts of three shells from one description of the commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    help: str = ""
    takes_value: bool = False
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    help: str = ""
    options: tuple[Option, ...] = ()
    children: tuple[Command, ...] = ()
    words: tuple[str, ...] = ()  # what its arguments may be, where that is known


def walk(root: Command, path: str = "") -> Iterator[tuple[str, Command]]:
    """Every command with its place: "" for the root, "/engines/install" below it."""
    yield path, root
    for child in root.children:
        yield from walk(child, f"{path}/{child.name}")


def bash(root: Command) -> str:
    words, values = [], []
    for path, command in walk(root):
        plain = [*(child.name for child in command.children), *command.words]
        flags = [flag for option in command.options for flag in option.flags]
        words.append(f"    {_quoted(path)}) words={_quoted(' '.join(plain))}; flags={_quoted(' '.join(flags))} ;;")
        for pattern, option in _valued(path, command):
            values.append(f"    {pattern}) words={_quoted(' '.join(option.values))}; flags='' ;;")
    return f"""# bash completion for bay; in ~/.bashrc: eval "$(bay completion bash)"
_bay() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} place='' word words='' flags=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$place/$word" in
      {_places(root)}) place="$place/$word" ;;
    esac
  done
  case "$place" in
{_lines(words)}
  esac
  case "$place $prev" in
{_lines(values)}
  esac
  if [[ $cur == -* ]]; then words=$flags; fi
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _bay bay
"""


def zsh(root: Command) -> str:
    words, values = [], []
    for path, command in walk(root):
        plain = [_described(child.name, child.help) for child in command.children]
        plain += [_quoted(_escaped(word)) for word in command.words]
        flags = [_described(flag, option.help) for option in command.options for flag in option.flags]
        words.append(f"    {_quoted(path)}) found=({' '.join(plain)}); flags=({' '.join(flags)}) ;;")
        for pattern, option in _valued(path, command):
            values.append(
                f"    {pattern}) found=({' '.join(_quoted(_escaped(v)) for v in option.values)}); flags=() ;;"
            )
    return f"""#compdef bay
# zsh completion for bay; in ~/.zshrc, after compinit: eval "$(bay completion zsh)"
_bay() {{
  local place='' word
  local -a found flags
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    case "$place/$word" in
      {_places(root)}) place="$place/$word" ;;
    esac
  done
  case "$place" in
{_lines(words)}
  esac
  case "$place ${{words[CURRENT-1]}}" in
{_lines(values)}
  esac
  if [[ ${{words[CURRENT]}} == -* ]]; then found=("${{flags[@]}}"); fi
  if (( ${{#found}} )); then _describe 'bay' found; else _files; fi
}}
if [[ "${{funcstack[1]}}" == _bay ]]; then _bay "$@"; else compdef _bay bay; fi
"""


def fish(root: Command) -> str:
    lines = []
    for path, command in walk(root):
        at = f"complete -c bay -n {_quoted(f'__bay_at {path or chr(47)}')}"
        lines += [f"{at} -f -a {child.name} -d {_quoted(child.help)}" for child in command.children]
        if command.words:
            lines.append(f"{at} -f -a {_quoted(' '.join(command.words))}")
        lines += [f"{at} {_fish_option(option)}" for option in command.options]
    return f"""# fish completion for bay: bay completion fish > ~/.config/fish/completions/bay.fish
function __bay_at
  set -l place ''
  for word in (commandline -opc)[2..-1]
    switch "$place/$word"
      case {" ".join(_quoted(path) for path, _ in walk(root) if path)}
        set place "$place/$word"
    end
  end
  test -z "$place"; and set place /
  test "$place" = "$argv[1]"
end
{_lines(lines)}
"""


def _fish_option(option: Option) -> str:
    parts = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    parts.append(f"-d {_quoted(option.help)}")
    if option.takes_value:
        parts.append(f"-x -a {_quoted(' '.join(option.values))}" if option.values else "-r")
    return " ".join(parts)


def _valued(path: str, command: Command) -> Iterator[tuple[str, Option]]:
    """Options that take a value, with the shell pattern "place --flag"; without known values they complete files."""
    for option in command.options:
        if option.takes_value:
            yield "|".join(_quoted(f"{path} {flag}") for flag in option.flags), option


def _places(root: Command) -> str:
    return "|".join(_quoted(path) for path, _ in walk(root) if path)


def _described(name: str, text: str) -> str:
    return _quoted(f"{_escaped(name)}:{text}" if text else _escaped(name))


def _escaped(text: str) -> str:
    return text.replace(":", "\\:")


def _quoted(text: str) -> str:
    """Always in quotes, so that an empty text stays an argument."""
    return shlex.quote(text) if text else "''"


def _lines(lines: list[str]) -> str:
    return "\n".join(lines)


SCRIPTS: Mapping[str, Callable[[Command], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
