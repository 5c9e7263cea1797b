#include "reports/html_page.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reports/html_parts.h"
#include "reports/markup.h"

namespace shardproof {
namespace {

std::string_view class_of(Tone tone) {
  switch (tone) {
    case Tone::plain: return "plain";
    case Tone::good: return "good";
    case Tone::bad: return "bad";
    case Tone::faint: return "faint";
  }
  return "plain";
}

// The columns that are shown, in the order in which they are.
std::vector<std::size_t> shown_columns(const TextTable& rows, const std::optional<std::string>& first) {
  std::vector<std::size_t> shown;
  for (std::size_t column = 0; column < rows.columns().size(); ++column) {
    if (rows.is_filled(column)) shown.push_back(column);
  }
  const auto found =
      std::ranges::find_if(shown, [&](std::size_t column) { return first && rows.columns()[column].title == *first; });
  if (found != shown.end()) std::rotate(shown.begin(), found, found + 1);
  return shown;
}

std::string cell_text(const TextTable::Cell& cell, TextTable::Align align, std::string_view link) {
  constexpr std::size_t kLong = 40;  // from here on broken into lines
  std::string attributes;
  if (align == TextTable::Align::right) {
    attributes += " class=\"number\"";
  } else if (width_of(cell.text) > kLong) {
    attributes += " class=\"long\"";
  }
  if (cell.number) attributes += fmt::format(" data-number=\"{}\"", *cell.number);
  std::string inside = markup_text(cell.text);
  if (cell.tone != Tone::plain) inside = fmt::format("<span class=\"word {}\">{}</span>", class_of(cell.tone), inside);
  if (!link.empty()) inside = fmt::format("<a href=\"#{}\">{}</a>", markup_attribute(link), inside);
  return fmt::format("<td{}>{}</td>", attributes, inside);
}

}  // namespace

HtmlPage::HtmlPage(std::string_view title, std::string_view heading, std::string_view sentence, Tone tone) {
  head_ = fmt::format(kHtmlHead, fmt::arg("title", markup_text(title)), fmt::arg("style", kHtmlStyle));
  head_ += fmt::format("<header>\n<h1>{}</h1>\n", markup_text(heading));
  if (!sentence.empty())
    head_ += fmt::format("<p class=\"verdict {}\">{}</p>\n", class_of(tone), markup_text(sentence));
}

void HtmlPage::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  body_ += "<dl>\n";
  for (const auto& [name, value] : facts)
    body_ += fmt::format("<div><dt>{}</dt><dd class=\"lines\">{}</dd></div>\n", markup_text(name), markup_text(value));
  body_ += "</dl>\n";
}

void HtmlPage::section(std::string_view heading, std::string_view id) {
  if (is_in_section_) body_ += "</section>\n";
  is_in_section_ = true;
  contents_.push_back(fmt::format("<li><a href=\"#{}\">{}</a></li>\n", markup_attribute(id), markup_text(heading)));
  body_ += fmt::format("<section id=\"{0}\" aria-labelledby=\"{0}-heading\">\n<h2 id=\"{0}-heading\">{1}</h2>\n",
                       markup_attribute(id), markup_text(heading));
}

void HtmlPage::paragraph(std::string_view text) {
  if (!text.empty()) body_ += fmt::format("<p>{}</p>\n", markup_text(text));
}

void HtmlPage::items(const std::vector<HtmlItem>& items) {
  if (items.empty()) return;
  body_ += "<ul class=\"items\">\n";
  for (const HtmlItem& item : items) {
    body_ += item.id.empty() ? "<li>" : fmt::format("<li id=\"{}\">", markup_attribute(item.id));
    body_ += fmt::format("<p class=\"lines\">{}</p>\n", markup_text(item.text));
    if (!item.places.empty()) body_ += "<dl>\n";
    for (const auto& [name, text] : item.places)
      body_ += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", markup_text(name), markup_text(text));
    if (!item.places.empty()) body_ += "</dl>\n";
    list(item.notes);
    command(item.command);
    for (const HtmlDetail& detail : item.details) {
      body_ += fmt::format("<details><summary>{}</summary>\n", markup_text(detail.name));
      list(detail.notes);
      command(detail.command);
      body_ += "</details>\n";
    }
    body_ += "</li>\n";
  }
  body_ += "</ul>\n";
}

void HtmlPage::list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const std::string& item : items) body_ += fmt::format("<li class=\"lines\">{}</li>\n", markup_text(item));
  body_ += "</ul>\n";
}

void HtmlPage::command(std::string_view text) {
  if (!text.empty()) body_ += fmt::format("<p>repeat it: <code>{}</code></p>\n", markup_text(text));
}

void HtmlPage::verbatim(std::string_view text) {
  // A reader drops a line end behind the tag.
  body_ += fmt::format("<pre tabindex=\"0\">\n{}</pre>\n", markup_text(text));
}

void HtmlPage::table(const TextTable& rows, const HtmlTable& how) {
  if (rows.empty()) return;
  const std::vector<std::size_t> shown = shown_columns(rows, how.filter);
  const std::string caption = markup_text(how.caption);
  // A wide table is moved within its frame, with the keyboard, too.
  body_ += fmt::format("<div class=\"frame\" tabindex=\"0\" role=\"region\" aria-label=\"{}\">\n",
                       markup_attribute(how.caption));
  body_ += fmt::format("<table{}>\n<caption>{}</caption>\n<thead><tr>", how.filter ? " data-filter" : "", caption);
  for (const std::size_t column : shown) {
    const TextTable::Column& title = rows.columns()[column];
    body_ += fmt::format("<th scope=\"col\"{}>{}</th>",
                         title.align == TextTable::Align::right ? " class=\"number\"" : "", markup_text(title.title));
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (std::size_t row = 0; row < rows.rows().size(); ++row) {
    body_ += "<tr>";
    for (const std::size_t column : shown) {
      const bool has_link = column == shown.front() && row < how.links.size();
      body_ += cell_text(rows.rows()[row][column], rows.columns()[column].align, has_link ? how.links[row] : "");
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table>\n</div>\n";
}

std::string HtmlPage::text() const {
  const std::string contents =
      contents_.size() < 2
          ? ""
          : fmt::format("<nav aria-label=\"Contents\">\n<ul>\n{}</ul>\n</nav>\n", fmt::join(contents_, ""));
  return head_ + contents + "</header>\n<main>\n" + body_ + (is_in_section_ ? "</section>\n" : "") +
         "</main>\n<script>\n" + std::string(kHtmlScript) + "</script>\n</body>\n</html>\n";
}

}  // namespace shardproof
