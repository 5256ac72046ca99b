"""Shell scripts that are read without running them: the words are those that bash gives, and the rest is named."""

import shutil
import subprocess

import pytest

from dsindex.options.shell_script import find_commands

ARGUMENTS = ["/data/a b", "two"]
SCRIPTS = {
    "quotes": r"""show 'a b' "c  d" e\ f "g\"h" 'i'"j"k "" x'' "\$A" "a\
b" "it's" """,
    "variables": """A="x y"; B=${A}z; show $A "$A" ${A} $B
    show "${NONE:-d e}" ${NONE:-d e} ${A:+yes} ${NONE2:+no} "a${A}b" $1 "$1" $#""",
    "defaults": """export C=${C:-7}; D=${1:-"mock"}; E="${3:-x/y}"; show $C "$D" $E ${A-} ${C:=8}""",
    "arrays": """A=(--x 1 --y "2 3"); A+=("--z 4" $1); B=("${A[@]}" end); show ${A[@]} "${A[@]}" "${B[@]}" end""",
    "comments": """A=( # first
        --x 1 # second
        #--no
        --y 2\t
    )
    show ${A[@]} \\
        --last # end
    # show not this""",
    "arithmetic": """G=8; N=4; W=$(($G*$N)); V=$((G*(N+1)-2)); Q=$(( 7 / 2 % 2 )); show $W $V $Q $(( -G ))""",
    "text": '''options=" \\
        --x 1 \\
        --y ${1} "
    show $options "$options"''',
    "if": """A=fp8; B=(); if [[ "$A" == "fp8" ]]; then B+=("--f g"); else B+=(--no); fi; if [ -z "$NONE" ]; then X=1; fi
    if [[ $A == x ]] || [[ -z "$A" ]]; then Y=1; elif [ "$A" != fp8 ]; then Y=2; else Y=3; fi
    if [ 3 -gt 2 ] && [[ 1 -le 0 ]]; then Z=1; fi; if [[ ! "$A" = y ]]; then W=1; fi
    show ${B[@]} $X $Y "${Z:-none}" $W""",
    "redirections": """show a > /dev/null 2>&1; show b 2>/dev/null >>/dev/null; show c </dev/null""",
    "here": """show a <<EOF >/dev/null
show not 'this
EOF
show b; cat <<'X' >/dev/null
show nor this
X
show c""",
    "here for a shell": """A="x y"; L=(--p "1 2" '3'); show a; bash <<EOF
    # not 'this
    B=2; show "$A" ${L[@]} \\$B "q" "it's"
    show "\\$B"
EOF
bash <<'EOF'
    C=3; show $C
EOF
show b""",
    "joined": """A=(--x "1 2" y); B="run ${A[@]} end"; C="cd /x; $B"; show "$B" ${B} "${C}" "${B}" """,
    "case": """A=8B; case "${A}" in "800M") X=1; show no;; "8B" | 9B) X=2
        show yes ;;
    *) X=3 ;; esac
    case $A in (1) Y=1;; *) Y=2;; esac; case x in y) Z=1;; *) Z=2; case q in q) W=5;; esac; esac
    show $X $Y $Z $W; case a in a) show in;; a) show not;; esac; case a in b) show not; esac; show end""",
    "assigned defaults": """: ${C:=8} "${D:=x y}"; show $C "$D" ${D}; E=(); show "${E[@]}" "x${E[@]}" end""",
    "chains": """[ -n "$1" ] && A=1; [ -z "$1" ] && A=2; [[ -z "$1" || $A == 1 ]] || A=3; show $A
    true && B=1 && show $B; false || C=2; show $C; test "$B" = 1 && show t; ! [ 1 -eq 1 ] || show n""",
    "functions": """f() { A=$1; }; A=2; show "$1"; (A=3; show $A); true | show x; B=x; B+=y; show ${B}z$1-w _$B.z""",
    "lines": "show a; show b && show c || true\nshow d & wait\n{ show e; }",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_that_bash_gives(name, tmp_path):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    log = tmp_path / "log"
    runner = f'show() {{ printf "%s\\0" "$@" >> {log}; printf "\\n\\0" >> {log}; }}; export -f show\n'
    (tmp_path / "x.sh").write_text(runner + SCRIPTS[name])
    subprocess.run([bash, str(tmp_path / "x.sh"), *ARGUMENTS], check=True, cwd=tmp_path, env={"NONE": ""})
    expected = [[]]
    for word in log.read_text().split("\0")[:-1]:
        if word == "\n":
            expected.append([])
        else:
            expected[-1].append(word)
    found = [
        [word.text for word in command.words[1:]]
        for command in find_commands(SCRIPTS[name], ARGUMENTS, {"NONE": ""})
        if command.words[0].text == "show"
    ]
    assert sorted(found) == sorted(expected[:-1])


@pytest.mark.parametrize(
    ("script", "unknown"),
    [
        ("show $(date +%s)", ["$(date +%s)"]),
        ("show `date`", ["`date`"]),
        ('A=x-$(git log -1)/y; B="--p $A --q"; show $B', ["$(git log -1)"]),
        ("show $NONE/x", ["$NONE"]),
        ("show ${A##*/}", ["${A##*/}"]),
        ("show data/*.bin", ["*"]),
        ("if grep -q x y; then A=1; fi; show $A", ["$A"]),
        ("A=1; if [ -f x ]; then A=2; fi; show $A", ["$A"]),
        ("A=1; for i in 1 2; do A=$i; done; show $A", ["$A"]),
        ("case $1 in a) A=1;; b) A=2;; esac; show $A", ["$A"]),
        ("case $1 in a) A=1;; *) A=1;; esac; show $A", []),
        ("case $1 in a) A=1;; *) A=2;; esac; show $A", ["$A"]),
        ("A=1; case abc in a*) A=2;; esac; show $A", ["$A"]),
        ("A=1; if [ -f x ]; then A=1; fi; show $A", []),
        ("show $((N + 1))", ["$((N + 1))"]),
        ("N=$(nproc); show $((N + 1))", ["$((N + 1))"]),
        ("show $((1 << 99999999))", ["$((1 << 99999999))"]),
        ("A=1; grep -q x y && A=2; show $A", ["$A"]),
        ("A=1; f() { A=$1; }; f 2; show $A", ["$A"]),
        ("A=(x y); A[1]=z; show ${A[1]} $A", ["${A[1]}", "$A"]),
        ("A=1; read A; for B in x; do show $A $B; done", ["$A", "$B"]),
        ("show ~/x {a,b} $'x'", ["~", "{a,b}", "$'x'"]),
    ],
)
def test_what_only_a_shell_knows_is_named(script, unknown):
    [command] = [each for each in find_commands(script) if each.words[0].text == "show"]
    assert [text for word in command.words for text in word.unknown] == unknown


@pytest.mark.parametrize("script", [
    *("show 'a", 'show "a', "show ${a", "show `a", "A=(b", "if true; then show a", "for i in 1; do show a", "$((1"),
    *("case a in", "case a in b", "case a in b) show", "case a in &", "case a in b) show;; esa"),
])  # fmt: skip
def test_what_is_never_closed_is_refused(script):
    with pytest.raises(ValueError, match=r"line [23] has what is never closed"):
        find_commands(f"\n{script}")


@pytest.mark.parametrize("script", ["show \\  b", "show $A\\$$((2))"])
def test_words_that_the_grammar_cuts_are_refused(script):
    with pytest.raises(ValueError, match=r"line 2 has a word that is not understood, near"):
        find_commands(f"\n{script}")


def test_variables_cannot_grow_without_bound():
    doubling = "A=xxxxxxxxxxxxxxxx;" + 'A="$A$A";' * 40
    with pytest.raises(ValueError, match="grow to more than"):
        find_commands(doubling)
    with pytest.raises(ValueError, match="grow to more than"):
        find_commands("A=(x x x x);" + "A=(${A[@]} ${A[@]});" * 40)


def test_lines_are_counted():
    commands = find_commands("a\n\nb <<E\n1\n2\nE\nc \\\n d\ne\r\nf")
    assert [(command.words[0].text, command.line) for command in commands] == [
        ("a", 1),
        ("b", 3),
        ("c", 7),
        ("e", 9),
        ("f", 10),
    ]
