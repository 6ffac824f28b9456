#include "cli/flags/man_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "base/version.h"
#include "cli/flags/flag_docs.h"

namespace hadal::cli {
namespace {

// Escapes `text` (UTF-8) so that groff prints it unchanged. A '-' becomes the character that a shell accepts,
// and a character beyond ASCII is written by its number.
std::string escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\\') {
      out += "\\e";
    } else if (byte == '-') {
      out += "\\-";
    } else if (byte == '|') {
      out += "|\\:";  // a long list of choices may be broken here
    } else if (byte < 0x80) {
      out += text[i];
    } else {
      const int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : 1;
      uint32_t character = byte & (0x3FU >> more);
      for (int j = 0; j < more && i + 1 < text.size(); ++j)
        character = character << 6 | (static_cast<unsigned char>(text[++i]) & 0x3FU);
      out += fmt::format("\\[u{:04X}]", character);
    }
  }
  // A line that begins with a dot or a quote would be a request.
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

std::string page_header(const std::string& name, std::string_view summary) {
  return fmt::format(
      ".\\\" `hadal --man` writes this page from the table of flags.\n"
      ".TH \"{}\" \"1\" \"\" \"hadal {}\" \"User Commands\"\n"
      ".nh\n.ad l\n"
      ".SH NAME\n{} \\- {}\n",
      escaped(upper(name)), version(), escaped(name), escaped(summary));
}

constexpr std::string_view kExitStatus =
    ".SH EXIT STATUS\n"
    ".TP\n0\nThe command has done what it was asked to do.\n"
    ".TP\n1\nIt has failed, for instance because a file is missing or broken; one line on standard error "
    "says why.\n"
    ".TP\n2\nThe command line, or a flag in a file of \\-\\-config, is wrong.\n"
    ".TP\n130\nCtrl\\-C has ended it.\n";

constexpr std::string_view kFiles =
    ".SH ENVIRONMENT\n"
    ".TP\nHF_HUB_CACHE, HF_HOME\nWhere the cache of Hugging Face models is; else it is in "
    "~/.cache/huggingface.\n"
    ".TP\nHADAL_API_KEY, HADAL_ADMIN_API_KEY\nThe keys of a server, which \\-\\-api\\-key and "
    "\\-\\-admin\\-api\\-key also give.\n";

}  // namespace

std::string man_name(Command command) {
  std::string name = fmt::format("hadal-{}", info_of(command).name);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string man_page() {
  std::string out = page_header("hadal", "run DeepSeek models");
  out +=
      ".SH SYNOPSIS\n.B hadal\n.I COMMAND\n.RI [ MODEL ]\n.RI [ flags ]\n"
      ".SH DESCRIPTION\nHadal loads an unmodified Hugging Face checkpoint of a DeepSeek model and serves it "
      "over "
      "HTTP,\nor generates text from it in the terminal.\n.I MODEL\nis a directory, or an id of the Hugging "
      "Face "
      "hub.\n.SH COMMANDS\n";
  for (const CommandInfo& info : commands())
    out += fmt::format(".TP\n.BR \"{}\" (1)\n{}\n", escaped(man_name(info.command)), escaped(info.summary));
  out +=
      ".SH OPTIONS\n"
      ".TP\n.B \\-\\-help\nList the commands; after a command, its flags.\n"
      ".TP\n.B \\-\\-version\nPrint the version.\n"
      ".TP\n.B \\-\\-flags\nPrint all flags as a page of Markdown, with \\-\\-json as JSON.\n"
      ".TP\n.BI \\-\\-completion \" SHELL\"\nPrint a script by which bash, zsh or fish complete commands and "
      "flags.\n"
      ".TP\n.BI \\-\\-man \" \" \\fR[\\fPCOMMAND\\fR]\\fP\nPrint this page, or that of a command.\n";
  out += kExitStatus;
  out += kFiles;
  return out;
}

std::string man_page(Command command) {
  const CommandInfo& info = info_of(command);
  std::string out = page_header(man_name(command), info.summary);
  out += fmt::format(".SH SYNOPSIS\n.B hadal {}\n.RI [ flags ]\n.SH DESCRIPTION\nUse this command to {}.\n",
                     escaped(info.name), escaped(info.summary));
  out +=
      "Names of flags may be shortened as long as they stay unique, and written with _ instead of \\-.\n"
      ".SH OPTIONS\n";
  for (const std::string_view group : flag_groups()) {
    std::string section;
    for (const Flag& flag : flag_table()) {
      if (flag.flag_class != FlagClass::kHonoured || flag.group != group ||
          (flag.commands & static_cast<CommandSet>(command)) == 0)
        continue;
      const std::string left = signature(flag);
      const size_t space = std::min(left.find(' '), left.size());
      section +=
          fmt::format(".TP\n\\fB{}\\fR{}\n{}\n", escaped(left.substr(0, space)),
                      space == left.size() ? "" : fmt::format(" \\fI{}\\fR", escaped(left.substr(space + 1))),
                      escaped(help_text(flag)));
    }
    if (!section.empty()) out += fmt::format(".SS {}\n{}", group, section);
  }
  out += fmt::format(".SH EXAMPLE\n.nf\n{}\n.fi\n", escaped(info.example));
  out += kExitStatus;
  out += ".SH SEE ALSO\n.BR hadal (1)\n";
  return out;
}

}  // namespace hadal::cli
