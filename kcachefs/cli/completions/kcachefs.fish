# Completes kcachefs in fish: kcachefs completion fish | source
function __kcachefs_complete
    set -l words (commandline -opc)
    set -l token (commandline -ct)
    set -e words[1]
    kcachefs --complete $words "$token" 2>/dev/null
end
complete -c kcachefs -a '(__kcachefs_complete)'
