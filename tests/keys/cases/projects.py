from tests.keys.cases.case import Case

CASES: list[Case] = []
