#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/chat/chat_command.h"
#include "cli/chat/chat_settings.h"
#include "cli/chat/history_file.h"
#include "cli/chat/transcript.h"

namespace hadal::cli {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

fs::path empty_dir(const std::string& name) {
  fs::path dir = fs::path(testing::TempDir()) / name;
  fs::remove_all(dir);
  fs::create_directories(dir);
  return dir;
}

TEST(ChatInput, ALineThatBeginsWithASlashIsACommand) {
  EXPECT_EQ(parse_chat_input("hello /help")->action, ChatAction::kSay);
  EXPECT_EQ(*parse_chat_input("hello ")->text, "hello ");
  EXPECT_EQ(parse_chat_input("/help")->action, ChatAction::kHelp);
  EXPECT_EQ(parse_chat_input("/quit ")->action, ChatAction::kExit);
  EXPECT_EQ(*parse_chat_input("/system  Be brief. ")->text, "Be brief.");
  EXPECT_EQ(parse_chat_input("/system")->text, std::nullopt);
  EXPECT_EQ(parse_chat_input("/think off")->action, ChatAction::kNoThink);
  EXPECT_EQ(parse_chat_input("/think on")->action, ChatAction::kThink);
  EXPECT_EQ(*parse_chat_input("/set top-p 0.5")->text, "top-p 0.5");
  // A pasted text that begins with a path is a message.
  EXPECT_EQ(parse_chat_input("/usr/bin\n/usr/lib")->action, ChatAction::kSay);
}

TEST(ChatInput, ErrorsNameTheCommand) {
  EXPECT_EQ(parse_chat_input("/retyr").status().message,
            "unknown command /retyr; did you mean /retry?; /help lists the commands");
  EXPECT_THAT(parse_chat_input("/qwertyuiop").status().message,
              HasSubstr("unknown command /qwertyuiop; /help"));
  EXPECT_EQ(parse_chat_input("/reset now").status().message, "/reset now: the command has no argument");
  EXPECT_EQ(parse_chat_input("/save").status().message, "/save needs the name of a file");
  EXPECT_EQ(parse_chat_input("/think maybe").status().message, "/think maybe: must be on or off");
}

TEST(Transcript, SurvivesJson) {
  const Transcript before{
      .system = "Be \"brief\".",
      .thinking = true,
      .turns = {{.role = "user", .content = "a\nb"}, {.role = "assistant", .content = "c"}}};
  const auto after = parse_transcript(transcript_json(before), "f");
  ASSERT_TRUE(after.ok()) << after.status().message;
  EXPECT_EQ(after->system, before.system);
  EXPECT_TRUE(after->thinking);
  ASSERT_EQ(after->turns.size(), 2U);
  EXPECT_EQ(after->turns[0].content, "a\nb");
  EXPECT_EQ(after->turns[1].role, "assistant");
}

TEST(Transcript, ErrorsNameTheField) {
  for (const auto& [text, wanted] :
       {std::pair("[", "f: must be a JSON object with a list `messages`"),
        {R"({"messages": 3})", "f: must be a JSON object with a list `messages`"},
        {R"({"messages": [3]})", "f: messages[0].role: must be a text"},
        {R"({"messages": [{"role": "user"}]})", "f: messages[0].content: must be a text"},
        {R"({"messages": [{"role": "user", "content": ""}, {"role": "user", "content": ""}]})",
         "f: messages[1].role: is \"user\"; must be \"assistant\" here"},
        {R"({"messages": [], "thinking": 1})", "f: thinking: must be true or false"}}) {
    EXPECT_THAT(parse_transcript(text, "f").status().message, HasSubstr(wanted)) << text;
  }
}

TEST(Transcript, TheLastQuestionLosesItsAnswerAlone) {
  Transcript chat{.system = "s", .turns = {{.role = "user", .content = "q"}, {.role = "assistant"}}};
  chat.drop_answer();
  chat.drop_answer();
  ASSERT_NE(chat.last_question(), nullptr);
  EXPECT_EQ(chat.last_question()->content, "q");
  EXPECT_EQ(chat.messages().size(), 2U);
}

TEST(ChatSettings, SetChangesWhatSamplingFlagsSayAndNothingElse) {
  const std::vector<std::string> words = {"--temperature", "0.5"};
  const auto flags = parse_flags(Command::kChat, words);
  ASSERT_TRUE(flags.ok());
  GenerationConfig file;
  file.top_p = 0.9;
  auto settings = ChatSettings::make(*flags, file, 100);
  ASSERT_TRUE(settings.ok()) << settings.status().message;
  EXPECT_EQ(settings->set("temperature 0.25").value(), "temperature 0.25");
  EXPECT_EQ(settings->set("top_k=7").value(), "top-k 7");
  EXPECT_EQ(settings->sampling().params.temperature, 0.25F);
  EXPECT_EQ(settings->sampling().params.top_k, 7);
  EXPECT_EQ(settings->sampling().params.top_p, 0.9F);
  EXPECT_EQ(settings->set("temperature").value(), "temperature 0.5");
  EXPECT_EQ(settings->set("seed 4").value(), "seed 4");
  EXPECT_EQ(settings->set("seed").value(), "seed is not set");
  EXPECT_EQ(settings->set("stop-token-ids 3,4").value(), "stop-token-ids 3,4");
  EXPECT_EQ(settings->sampling().params.temperature, 0.5F);
  EXPECT_EQ(settings->set("ignore-eos").value(), "ignore-eos on");
  EXPECT_TRUE(settings->sampling().params.ignore_eos);
  EXPECT_EQ(settings->set("ignore-eos off").value(), "ignore-eos off");
  EXPECT_FALSE(settings->sampling().params.ignore_eos);
  EXPECT_THAT(settings->set("max-new-tokens 0").status().message,
              HasSubstr("--max-new-tokens 0: must be at least 1"));
  EXPECT_THAT(settings->set("temperature 1e31").status().message,
              HasSubstr("--temperature 1e31: must be in [0, 1e+30]"));
  EXPECT_THAT(settings->set("top-p 2").status().message, HasSubstr("--top-p 2: must be in [1e-30, 1]"));
  EXPECT_THAT(settings->set("stop-token-ids 100").status().message,
              HasSubstr("--stop-token-ids: contains the token 100; must be in [0, 99]"));
  EXPECT_EQ(settings->sampling().params.temperature, 0.5F);
  EXPECT_THAT(settings->set("top-k 0").status().message, HasSubstr("--top-k 0: must be"));
  EXPECT_EQ(settings->sampling().params.top_k, 7);
  EXPECT_THAT(settings->set("device cuda").status().message,
              HasSubstr("/set device: cannot be changed in a conversation; allowed: "));
  EXPECT_THAT(settings->set("tempreature 1").status().message, HasSubstr("the nearest one is --temperature"));
  EXPECT_THAT(settings->describe(), HasSubstr("temperature 0.5\n"));
}

TEST(HistoryFile, IsWhereXdgSaysItBelongs) {
  EXPECT_EQ(chat_history_path("/state", "/home/a"), "/state/hadal/chat_history");
  EXPECT_EQ(chat_history_path("", "/home/a"), "/home/a/.local/state/hadal/chat_history");
  EXPECT_EQ(chat_history_path("relative", "/home/a"), "/home/a/.local/state/hadal/chat_history");
  EXPECT_EQ(chat_history_path("", ""), "");
}

TEST(HistoryFile, KeepsEntriesInOrderAndFromOthers) {
  const fs::path path = empty_dir("hadal_history") / "a" / "b" / "history";
  EXPECT_TRUE(load_history(path).empty());
  ASSERT_TRUE(append_history(path, "one\ntwo").ok());
  ASSERT_TRUE(append_history(path, "\xff").ok());
  EXPECT_THAT(load_history(path), ElementsAre("one\ntwo", "\xef\xbf\xbd"));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  ASSERT_EQ(::stat(path.parent_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0700U);
  std::ofstream(path, std::ios::app) << "no JSON\n[]\n";
  ASSERT_TRUE(append_history(path, "three").ok());
  EXPECT_EQ(load_history(path).back(), "three");
  EXPECT_EQ(load_history(path).size(), 3U);
}

TEST(HistoryFile, IsShortenedWhenItIsTwiceAsLongAsWhatIsKept) {
  const fs::path path = empty_dir("hadal_history_long") / "history";
  std::string text;
  for (size_t i = 0; i < 2 * kMaxHistoryEntries; ++i) text += std::to_string(i).insert(0, "\"") + "\"\n";
  std::ofstream(path) << text;
  EXPECT_EQ(load_history(path).size(), kMaxHistoryEntries);
  EXPECT_EQ(load_history(path).back(), "1999");
  EXPECT_LT(fs::file_size(path), text.size());
}

TEST(HistoryFile, AnErrorNamesWhatCannotBeMade) {
  const fs::path dir = empty_dir("hadal_history_fault");
  std::ofstream(dir / "file") << "x";
  EXPECT_THAT(append_history(dir / "file" / "history", "x").status().message,
              HasSubstr((dir / "file").string()));
}

}  // namespace
}  // namespace hadal::cli
