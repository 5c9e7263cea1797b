// One page of HTML that needs nothing else: no file, no font, no address. Everything is readable without its script,
// which only sorts and filters tables. It is light or dark as the reader's system is. All texts that are given here are
// plain ones, which may hold anything.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/text_table.h"

namespace shardproof {

// How a table is shown besides what it holds.
struct HtmlTable {
  std::string caption;  // what it is, also for those who only hear it
  // Title of the column that comes first and by whose words rows can be chosen.
  std::optional<std::string> filter = std::nullopt;
  // Of each row the id of what explains its first cell, or nothing.
  std::vector<std::string> links = {};
};

// What is shown on demand below its name.
struct HtmlDetail {
  std::string name;
  std::vector<std::string> notes = {};
  std::string command = {};
};

// One of a list, with what belongs to it.
struct HtmlItem {
  std::string id = {};
  std::string text;                                              // line ends are kept
  std::vector<std::pair<std::string, std::string>> places = {};  // where it holds: a name, and a text
  std::vector<std::string> notes = {};
  std::string command = {};  // to be copied
  std::vector<HtmlDetail> details = {};
};

class HtmlPage {
 public:
  // `heading` opens the page; the sentence is the result, in the colour of its tone.
  HtmlPage(std::string_view title, std::string_view heading, std::string_view sentence, Tone tone);

  // Names with their values, in two columns. Line ends of a value are kept.
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);
  // What follows stands below it, until the next one. The id is a word. Links to several
  // open the page.
  void section(std::string_view heading, std::string_view id);
  void paragraph(std::string_view text);  // nothing of nothing
  void items(const std::vector<HtmlItem>& items);
  void list(const std::vector<std::string>& items);
  void verbatim(std::string_view text);
  // Columns in which no row has anything are left out.
  void table(const TextTable& rows, const HtmlTable& how);

  std::string text() const;

 private:
  void command(std::string_view text);

  std::string head_;
  std::vector<std::string> contents_;  // links to the sections
  std::string body_;
  bool is_in_section_ = false;
};

}  // namespace shardproof
