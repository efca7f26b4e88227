from tests.support import vision_operators

vision_operators.declare()
