#include "engine/named_backends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill {
namespace {

using testing::HasSubstr;

TEST(NamedBackends, EachIsThereOrSaysWhyNot) {
  ThreadTeam team(1);
  for (const std::string& name : backend_names()) {
    const auto backend = make_named_backend(name, {}, team);
    if (backend) continue;
    const ErrorCode code = backend.error().code;
    if (name.starts_with("cuda")) {
      EXPECT_EQ(code, ErrorCode::kDevice) << name;
      EXPECT_THAT(backend.error().message, HasSubstr("CUDA")) << name;
    } else {
      EXPECT_TRUE(name.starts_with("cpu-")) << name;
      EXPECT_EQ(code, ErrorCode::kInvalidArgument) << name;
    }
  }
}

TEST(NamedBackends, TheReferenceAloneDropsRoundings) {
  ThreadTeam team(1);
  for (const std::string& name : backend_names()) {
    const auto backend = make_named_backend(name, *Rounding::parse("none"), team);
    EXPECT_EQ(backend.has_value(), name.starts_with("reference")) << name;
    if (!backend) {
      EXPECT_EQ(backend.error().code, ErrorCode::kConflictingOptions);
    }
  }
}

TEST(NamedBackends, AnUnknownNameGetsTheList) {
  ThreadTeam team(1);
  for (const char* name : {"", "gpu", "CUDA", "cpu "}) {
    const auto backend = make_named_backend(name, {}, team);
    ASSERT_FALSE(backend) << name;
    EXPECT_EQ(backend.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(backend.error().message,
                HasSubstr("cpu-amx, cuda, cuda-eager, cuda-plain, reference"));
  }
}

}  // namespace
}  // namespace tidemill
