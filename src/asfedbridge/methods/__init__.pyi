DEFAULT: str  # the method of recipes and commands that name none
REFERENCE: str  # the method that others are compared with
