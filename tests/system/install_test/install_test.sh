#!/usr/bin/env bash
# Installs a build, moves the install elsewhere, and uses it as an outside project would: find_package, pkg-config, programs.
#
#   install_test.sh BUILD_DIR WORK_DIR CC CXX
set -euo pipefail
build=$1 work=$2 cc=$3 cxx=$4
here=$(dirname "$(readlink -f "$0")")
fail() { echo "install_test: $*" >&2; exit 1; }

rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/first" >"$work/install.log" ||
  { cat "$work/install.log"; fail "cmake --install failed"; }
mv "$work/first" "$work/prefix"  # nothing may depend on where it was installed
prefix=$work/prefix

for file in bin/gatund bin/gatun include/gatun/gatun.h include/gatun/gatun.hpp; do
  [[ -e $prefix/$file ]] || fail "$file was not installed; there is: $(cd "$prefix" && find . -type f | sort | tr '\n' ' ')"
done
for folder in protocols switch_model host; do
  [[ ! -e $prefix/include/$folder ]] || fail "include/$folder was installed; only include/gatun is public"
done
for program in gatund gatun; do
  "$prefix/bin/$program" --version || fail "the installed $program does not run"
done
grep -q '^# *port' "$prefix/share/gatun/gatun.sample.toml" || fail "no sample settings file was installed"

cmake -S "$here/outside" -B "$work/outside" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release >"$work/configure.log" 2>&1 ||
  { cat "$work/configure.log"; fail "find_package(gatun) failed"; }
cmake --build "$work/outside" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "linking gatun::gatun failed"; }
want=$("$work/outside/use_c") || fail "the C program failed"
[[ $want == "gatun "*.*.* ]] || fail "the C program printed '$want'"
[[ $("$work/outside/use_cpp") == "$want" ]] || fail "the C++ program failed"

if ! command -v pkg-config >/dev/null; then
  echo "without pkg-config: gatun.pc was not tried"
  exit 0
fi
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gatun.pc)")
export PKG_CONFIG_PATH
[[ -f $PKG_CONFIG_PATH/gatun.pc ]] || fail "gatun.pc was not installed"
[[ "gatun $(pkg-config --modversion gatun)" == "$want" ]] || fail "gatun.pc says version $(pkg-config --modversion gatun)"
read -r -a flags <<<"$(pkg-config --cflags --libs gatun)"
"$cc" "$here/outside/use.c" -o "$work/use_pc" "${flags[@]}" || fail "compiling with pkg-config's flags failed"
LD_LIBRARY_PATH=$(pkg-config --variable=libdir gatun) "$work/use_pc" >/dev/null || fail "the pkg-config program failed"
echo "$want: find_package and pkg-config work"
