#!/usr/bin/env bash
# The completion scripts work in the real shells: verbs, options of a verb, words of an option, words of a verb.
. "$(dirname "$0")/common.sh"

for shell in bash zsh fish; do
  expect 0 completion $shell
  cp out completion.$shell
done
expect 0 completion bash --json
python3 -c 'import json; assert json.load(open("out"))["script"] == open("completion.bash").read()' || fail "another script in the document"
expect 2 completion tcsh
holds err "bash, zsh, fish"
PATH=$(dirname "$SHARDCTL"):$PATH

# completes SHELL LINE WORD: the shell offers WORD at the end of LINE.
completes() {
  case $1 in
    bash)
      bash -c '. ./completion.bash; read -ra COMP_WORDS <<<"${1//=/ = }"; [[ $1 != *" " ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shardctl; printf "%s\n" "${COMPREPLY[@]}"' - "$2"
      ;;
    zsh) zsh -f zsh_offers "$2" "$3" ;;
    fish) fish --no-config -c 'source completion.fish; complete -C "$argv[1]"' "$2" | cut -f 1 ;;
  esac >offered 2>&1 || true
  grep -qE -- "(^|[^a-z-])$3($|[^a-z_-])" offered || { cp offered out && fail "$1 does not complete '$2' to '$3'"; }
}

# zsh completes only on terminals, so it gets one. The test reads the terminal until WORD appears, at most 10 s.
cat >zsh_offers <<'Z'
zmodload zsh/zpty zsh/zselect
zpty shell zsh -f -i
zpty -w shell "PS1= RPS1=; unsetopt zle_bracketed_paste; autoload -Uz compinit && compinit -u -C -d ./zsh_dump; source ./completion.zsh; print REA''DY"
zpty -r shell drawn '*READY*'
zpty -w -n shell "$1"$'\t\t'
for ((i = 0; i < 500; ++i)); do
  zselect -t 2
  while zpty -r -t shell drawn; do all+=$drawn; done
  [[ $all =~ "(^|[^a-z-])$2[^a-z_-]" ]] && break
done
print -rn -- "$all"
zpty -d shell
Z

tried=0
for shell in bash zsh fish; do
  command -v $shell >/dev/null || { echo "SKIPPED: no $shell here" && continue; }
  completes $shell "shardctl ins" inspect
  completes $shell "shardctl inspect --ranks-e" --ranks-expected
  completes $shell "shardctl inspect --from safe" safetensors
  completes $shell "shardctl split x --as sh" sharded_tensor
  completes $shell "shardctl split x --to=safe" safetensors
  completes $shell "shardctl -j 3 dige" digest
  completes $shell "shardctl cat x y --format n" npy
  completes $shell "shardctl completion fi" fish
  completes $shell "shardctl help resh" reshard
  tried=$((tried + 1))
done
[ $tried -gt 0 ] || fail "no shell at all"

# Every long option that the bash script offers exists: its verb accepts it.
for verb in inspect split cat digest; do
  for option in $(sed -n "s/^ *$verb) words=\"\(.*\)\" ;;/\1/p" completion.bash); do
    "$SHARDCTL" help $verb --all | grep -q -- "$option" || fail "help $verb does not know $option"
  done
done
