// What is printed: the tables of one run and of a comparison, and both as JSON.
#pragma once

#include <string>
#include <vector>

#include "experiments/net/scenario.h"

namespace gatun::net {

struct Row {  // of a comparison; the first is what the others are compared with
  std::string name;
  Scenario scenario;
  Report report;
};

void print(const Report& report);
// The last line names the worst ratio of the last row, which is the product, against the first.
void print(const std::vector<Row>& rows);
std::string json(const Scenario& scenario, const Report& report);
std::string json(const std::vector<Row>& rows);

}  // namespace gatun::net
