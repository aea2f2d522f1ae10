/// \file
/// The headers that most tests include, compiled once for all (cmake/targets.cmake).
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cmake/precompiled/common.h"
