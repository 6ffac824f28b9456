#include "cli/flags/flag_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/flags/flag_docs.h"
#include "tests/source_dir.h"

namespace hadal::cli {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FlagTable, CoversEveryFlagOfSglangWithItsNumberOfValues) {
  std::ifstream file(source_dir() + "/tests/cli/sglang_flags.txt");
  int count = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const size_t equals = line.find('=');
    const Flag* flag = find_flag(line.substr(0, equals));
    ASSERT_NE(flag, nullptr) << line;
    if (equals == std::string::npos) {
      EXPECT_EQ(flag->kind, ValueKind::kSwitch) << line;
    } else if (line.ends_with("=*")) {
      EXPECT_EQ(flag->kind, ValueKind::kList) << line;
    } else {
      EXPECT_TRUE(flag->kind != ValueKind::kSwitch && flag->kind != ValueKind::kList) << line;
    }
    ++count;
  }
  EXPECT_GT(count, 450);
}

TEST(FlagTable, EveryRowSaysWhatItMeans) {
  for (const Flag& flag : flag_table()) {
    EXPECT_FALSE(flag.text.empty()) << flag.name;
    EXPECT_EQ(flag.name.find('_'), std::string::npos) << flag.name;
    if (flag.flag_class == FlagClass::kHonoured) {
      EXPECT_NE(flag.commands, 0) << flag.name;
      EXPECT_FALSE(flag.group.empty()) << flag.name;
    }
    if (flag.flag_class == FlagClass::kAlias) {
      EXPECT_NE(find_flag(flag.text), nullptr) << flag.name;
    }
  }
}

// Returns the names that follow "--" in a text.
std::vector<std::string> flags_in(const std::string& text) {
  std::vector<std::string> names;
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 2)) {
    const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-", at + 2);
    names.push_back(text.substr(at + 2, end == std::string::npos ? end : end - at - 2));
  }
  return names;
}

TEST(FlagTable, NoRefusalNamesItsOwnFlagOrOneThatDoesNotExist) {
  int named = 0;
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class != FlagClass::kError && flag.flag_class != FlagClass::kAlready) continue;
    for (const std::string& name : flags_in(flag.text)) {
      ++named;
      EXPECT_NE(name, flag.name) << flag.text;
      const Flag* other = find_flag(name);
      ASSERT_NE(other, nullptr) << "--" << flag.name << ": " << flag.text;
      EXPECT_EQ(other->flag_class, FlagClass::kHonoured) << "--" << flag.name << ": " << flag.text;
    }
  }
  EXPECT_GT(named, 20);
}

// Where a flag does not apply, the parser says which commands have it.
TEST(FlagTable, AFlagThatSomeCommandHonoursIsRefusedByNone) {
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class != FlagClass::kError) continue;
    EXPECT_NE(find_flag(flag.name)->flag_class, FlagClass::kHonoured) << flag.name;
  }
}

TEST(FlagDocs, PageOfFlagsIsUpToDate) {
  EXPECT_EQ(read_file(source_dir() + "/docs/flags.md"), flags_markdown())
      << "run: hadal --flags > docs/flags.md";
}

TEST(FlagDocs, HelpOfACommandListsExactlyWhatItHonours) {
  for (const CommandInfo& info : commands()) {
    const std::string help = command_help(info.command);
    for (const Flag& flag : flag_table()) {
      const bool listed = help.find("\n  --" + flag.name + " ") != std::string::npos ||
                          help.find("\n  --" + flag.name + "\n") != std::string::npos;
      const Flag& row = *find_flag(flag.name, info.command);
      const bool honoured = row.flag_class == FlagClass::kHonoured &&
                            (row.commands & static_cast<CommandSet>(info.command)) != 0;
      EXPECT_EQ(listed, honoured) << info.name << " --" << flag.name;
    }
  }
}

TEST(FlagDocs, OverviewNamesEveryCommand) {
  const std::string help = overview_help();
  for (const CommandInfo& info : commands()) EXPECT_THAT(help, testing::HasSubstr(std::string(info.name)));
}

TEST(FlagDocs, AGroupNamesItsCommandsOnly) {
  const std::string help = group_help("tune");
  for (const CommandInfo& info : commands()) {
    const auto names_it = testing::HasSubstr(fmt::format("  {} ", info.name));
    if (info.name.starts_with("tune ")) {
      EXPECT_THAT(help, names_it);
    } else {
      EXPECT_THAT(help, testing::Not(names_it));
    }
  }
}

}  // namespace
}  // namespace hadal::cli
