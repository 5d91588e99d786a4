"""The largest of a line and a floor together, in as few turns as Euclid's algorithm takes."""


def largest_of_floors(count: int, rise: int, fall: int, over: int, under: int) -> int:
    """The largest rise * i + fall * floor(over * i / under) of all i from 0 below `count`.

    In as many turns as Euclid's algorithm has for `over` and `under`, as sums of such floors are found: a turn takes
    the whole part out of the quotient, and then counts by the floor in place of i.
    """
    base, largest, rest = 0, 0, 0
    while True:
        rise, over = rise + fall * (over // under), over % under
        base, rest = base + fall * (rest // under), rest % under
        floors = (over * (count - 1) + rest) // under
        largest = max(largest, base, base + rise * (count - 1) + fall * floors)
        if floors == 0 or rise * fall >= 0:
            return largest
        # Of the i of one floor the last counts where they rise, and else the first, which is one after a last.
        base += rise + fall if rise < 0 else 0
        count, rest = floors, under - rest - 1
        rise, fall, over, under = fall, rise, under, over
