# Completes kcachefs in bash: eval "$(kcachefs completion bash)"
_kcachefs() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ -n "$line" ]] && COMPREPLY+=("$(printf %q "$line")")
    done < <(kcachefs --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _kcachefs kcachefs
