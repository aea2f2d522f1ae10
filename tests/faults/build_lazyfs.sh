#!/usr/bin/env bash
# Builds LazyFS from its sources and toml11's (3.7.1), with the system's FUSE 3, spdlog and fmt, without downloads.
#
#     build_lazyfs.sh LAZYFS TOML11 PROGRAM
set -eu
lazyfs=$1 toml11=$2 program=$3
mapfile -t sources < <(find "$lazyfs/libs/libpcache/src" "$lazyfs/lazyfs/src" "$lazyfs/lazyfs/include" -name '*.cpp')
exec "${CXX:-g++}" -std=c++17 -O1 -w -DSPDLOG_COMPILED_LIB -I"$lazyfs/libs/libpcache/include" -I"$lazyfs/lazyfs/include" -I"$toml11" \
  "${sources[@]}" -o "$program" $(pkg-config --cflags --libs fuse3 spdlog) -lfmt -pthread
